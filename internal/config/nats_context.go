package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/textfile"
)

// natsContext is a context of the nats command: a file with a server and how to log in there. The rest of its members,
// such as the colours, are of no use to timerd.
//
// The library of these files, github.com/synadia-io/orbit.go/natscontext, does nothing but connect: a fault would show
// only then, its errors quote what nsc prints, and it ignores user_jwt and the JetStream domain.
type natsContext struct {
	URL        string `json:"url"`
	User       string `json:"user"`
	Password   string `json:"password"`
	Token      string `json:"token"`
	Creds      string `json:"creds"`
	NKey       string `json:"nkey"`
	UserJWT    string `json:"user_jwt"`
	UserSeed   string `json:"user_seed"`
	Cert       string `json:"cert"`
	Key        string `json:"key"`
	CA         string `json:"ca"`
	TLSFirst   bool   `json:"tls_first"`
	Domain     string `json:"jetstream_domain"`
	APIPrefix  string `json:"jetstream_api_prefix"`
	Inbox      string `json:"inbox_prefix"`
	NSC        string `json:"nsc"`
	SocksProxy string `json:"socks_proxy"`
	WinStore   string `json:"windows_cert_store"`
}

// Auth is how to log in to NATS by other means than [NATS.User] and [NATS.Creds]. At most one is set.
type Auth struct {
	Token             string
	NKey              string // file with a seed
	UserJWT, UserSeed string // a bearer's JWT has no seed
}

// parseContext fills in where NATS is from a context of the nats command. value is its name, or the path of its file.
func (c *NATS) parseContext(value string, f *faults) {
	const variable = "NATS_CONTEXT"
	file, err := contextFile(value)
	var text []byte
	if err == nil {
		text, err = textfile.Read(file)
	}
	if err != nil {
		f.addf(variable, "%w", err)
		return
	}
	var n natsContext
	if err := json.Unmarshal(text, &n); err != nil {
		f.addf(variable, "%s: %w: want the JSON that nats context add writes", file, err)
		return
	}
	of := func(member string) string { return variable + ": " + member + " of " + file }
	for _, unknown := range [][2]string{{"nsc", n.NSC}, {"socks_proxy", n.SocksProxy},
		{"windows_cert_store", n.WinStore}} {
		if unknown[1] != "" {
			f.addf(of(unknown[0]),
				"timerd cannot use it: leave it empty, and name a file as creds if the server wants credentials")
		}
	}
	c.Context, c.ContextFile = value, file
	c.URL, c.Shown = parseNATSURLs(of("url"), cmp.Or(n.URL, nats.DefaultURL), f)
	c.Creds, c.CA, c.Cert, c.Key = filePath(n.Creds), filePath(n.CA), filePath(n.Cert), filePath(n.Key)
	c.TLSFirst, c.Domain, c.APIPrefix, c.InboxPrefix = n.TLSFirst, n.Domain, n.APIPrefix, n.Inbox
	switch { // in the order of the nats command
	case n.User != "":
		c.User, c.Password, c.Creds = n.User, n.Password, ""
	case c.Creds != "":
		checkCreds(of("creds"), c.Creds, f)
	case n.UserJWT != "":
		c.Auth = Auth{UserJWT: n.UserJWT, UserSeed: n.UserSeed}
	case n.NKey != "":
		c.Auth.NKey = filePath(n.NKey)
		if _, err := nats.NkeyOptionFromSeed(c.Auth.NKey); err != nil {
			f.addf(of("nkey"), "%w: want a readable file with the seed of a user", err)
		}
	default:
		c.Auth.Token = n.Token
	}
	if c.Domain != "" && c.APIPrefix != "" {
		f.addf(of("jetstream_domain"), "jetstream_api_prefix is set too: leave one of them empty")
	}
}

// contextFile returns the file of a context, by its name or by its path.
func contextFile(value string) (string, error) {
	if filepath.IsAbs(value) {
		return value, nil
	}
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%q: neither XDG_CONFIG_HOME nor HOME is set: "+
				"want the path of the context's file, such as /etc/timerd/nats.json", value)
		}
		dir = filepath.Join(home, ".config")
	}
	dir = filepath.Join(dir, "nats", "context")
	const ending = ".json"
	file := filepath.Join(dir, value+ending)
	if filepath.Dir(file) != dir {
		return "", fmt.Errorf("%q: want the name of a context of the nats command, or the path of its file from / on",
			value)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		return file, nil // if it cannot be read, reading says why
	}
	var known []string
	entries, _ := os.ReadDir(dir) // without them there are none
	for _, entry := range entries {
		if name, is := strings.CutSuffix(entry.Name(), ending); is {
			known = append(known, name)
		}
	}
	slices.Sort(known)
	there := "there is none"
	if len(known) > 0 {
		there = "there are " + strings.Join(known, ", ")
	}
	return "", fmt.Errorf("%q: %s has no such context, %s: want one of nats context ls, or make it by nats context add",
		value, dir, there)
}

// filePath returns a path of a context as the nats command reads it: with variables, and ~ for the home.
func filePath(path string) string {
	path = os.ExpandEnv(path)
	if rest, is := strings.CutPrefix(path, "~"); is {
		if home, err := os.UserHomeDir(); err == nil {
			return home + rest
		}
	}
	return path
}
