package config

import (
	"bytes"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// TLS files serve Redis in each mode; unreadable, unfitting and unused ones are errors that name the variable.
func TestConfigRedisTLS(t *testing.T) {
	authority := testenv.NewAuthority(t)
	cert, key := authority.Issue("timerd")
	files := map[string]string{"TIMERD_REDIS_CA": authority.File, "TIMERD_REDIS_CERT": cert, "TIMERD_REDIS_KEY": key}
	read := func(url string, mode Mode, with map[string]string) (Redis, error) {
		env := map[string]string{"TIMERD_REDIS_URL": url, "TIMERD_REDIS_MODE": string(mode)}
		maps.Copy(env, with)
		testenv.SetVariables(t, env)
		c, err := Read(SectionRedis)
		return c.Redis, err
	}
	for mode, url := range map[Mode]string{
		Standalone: "rediss://redis.example:6380/3",
		Sentinel:   "rediss://redis.example:26379/0?master_name=m",
		Cluster:    "rediss://redis.example:6379?addr=other.example:6379",
	} {
		c, err := read(url, mode, files)
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if secure := c.TLS; secure == nil || secure.RootCAs == nil || secure.GetClientCertificate == nil ||
			secure.ServerName != "redis.example" {
			t.Errorf("%s: %+v", mode, secure)
		}
		if host, _, _ := strings.Cut(c.FirstAddr, ":"); host != "redis.example" {
			t.Errorf("%s: the first address is %s", mode, c.FirstAddr)
		}
		if c, err = read(url, mode, nil); err != nil || c.TLS == nil || c.TLS.RootCAs != nil ||
			c.TLS.GetClientCertificate != nil {
			t.Errorf("%s without files: %+v, %v", mode, c.TLS, err)
		}
	}
	// Files for TLS with a URL that has none would leave everything in the clear.
	for _, url := range []string{"redis://redis.example", "unix:///run/redis.sock"} {
		for name, value := range files {
			with := map[string]string{name: value}
			if name != "TIMERD_REDIS_CA" {
				with = files
			}
			if _, err := read(url, Standalone, with); err == nil || !strings.Contains(err.Error(), "want rediss://") {
				t.Errorf("%s with %s: %v", url, name, err)
			}
		}
	}
	// A certificate that was renewed is used from the next connection on.
	c, err := read("rediss://redis.example", Standalone, files)
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.TLS.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	newCert, newKey := authority.Issue("timerd")
	for from, to := range map[string]string{newCert: cert, newKey: key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	after, err := c.TLS.GetClientCertificate(nil)
	if err != nil || bytes.Equal(after.Certificate[0], before.Certificate[0]) {
		t.Errorf("after the renewal: the same certificate, or %v", err)
	}
	// Editors of Windows begin files with a byte order mark.
	for _, file := range files {
		pem, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append([]byte("\ufeff"), pem...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := read("rediss://redis.example", Standalone, files); err != nil {
		t.Errorf("with byte order marks: %v", err)
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_CA": authority.File, "TIMERD_NATS_CERT": cert,
		"TIMERD_NATS_KEY": key})
	onNATS, err := Read(SectionNATS)
	if err != nil {
		t.Fatal(err)
	}
	_, err = onNATS.NATS.Authorities()
	if _, certErr := onNATS.NATS.ClientCertificate(); err != nil || certErr != nil {
		t.Errorf("of NATS, with byte order marks: %v, %v", err, certErr)
	}
	// Of another key.
	_, foreign := authority.Issue("other")
	files["TIMERD_REDIS_KEY"] = foreign
	if _, err := read("rediss://redis.example", Standalone, files); err == nil ||
		!strings.Contains(err.Error(), "TIMERD_REDIS_CERT: "+cert+" with TIMERD_REDIS_KEY="+foreign) {
		t.Errorf("a key of another certificate: %v", err)
	}
}

func TestConfigEmbeddedIsAlone(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": "embedded", "TIMERD_DATA_DIR": "data",
		"TIMERD_STREAM_REPLICAS": "3"})
	if _, err := Read(SectionNATS); err == nil || !strings.Contains(err.Error(), `TIMERD_STREAM_REPLICAS="3": want 1`) {
		t.Errorf("got %v", err)
	}
}
