package diag

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// Clients has the options with which redis-cli and nats reach timerd's servers, without credentials. The zero value
// leaves commands as they are.
type Clients struct {
	Redis    string // host:port, or the path of a socket; "" if unknown
	Sentinel string // host:port of a sentinel that knows the server; "" for none
	Master   string // its name at that sentinel
	DB       int
	TLS      bool   // of Redis
	NATS     string // URLs without credentials; "" for the default of nats
	Context  string // of nats, instead of these; "" for none
}

// On returns the same options for commands about one server of a Redis Cluster, host:port; with "" it returns c.
func (c Clients) On(server string) Clients {
	if server != "" {
		c.Redis = server
	}
	return c
}

// Address adds the options to the commands in fixes, so that they reach timerd's servers. A command that has options
// stays as it is, so callers that know the server come first.
func (c Clients) Address(all Findings) {
	var with []string
	if options := c.redisOptions(); options != "" {
		for letter := 'A'; letter <= 'Z'; letter++ { // Redis's commands are in upper case
			with = append(with, "redis-cli "+string(letter), "redis-cli "+options+string(letter))
		}
	}
	options := ""
	switch {
	case c.Context != "":
		options = "nats --context " + Word(c.Context)
	case c.NATS != "":
		options = "nats -s " + Word(c.NATS)
	}
	if options != "" {
		with = append(with, "nats stream ", options+" stream ", "nats consumer ", options+" consumer ")
	}
	commands := strings.NewReplacer(with...)
	for i := range all {
		all[i].Fix = commands.Replace(all[i].Fix)
	}
}

// redisOptions returns the options of redis-cli, each with a space behind it; "" for its defaults. The master changes,
// so the command itself asks the sentinel for it.
func (c Clients) redisOptions() (options string) {
	host, port, err := net.SplitHostPort(c.Redis)
	switch {
	case strings.HasPrefix(c.Redis, "/"):
		options = "-s " + Word(c.Redis) + " "
	case c.Redis == "" && c.Sentinel != "":
		sentinel := Clients{Redis: c.Sentinel, TLS: c.TLS}.redisOptions()
		// Without an answer -h has no host, so that the command fails instead of going to this machine.
		options = "-h $(redis-cli " + sentinel + "SENTINEL GET-MASTER-ADDR-BY-NAME " + Word(c.Master) +
			" | sed '2s/^/-p /') "
	case err != nil:
		return ""
	case port != "6379" || !slices.Contains([]string{"127.0.0.1", "localhost", "::1"}, host):
		options = "-h " + Word(host) + " -p " + port + " "
	}
	if c.TLS {
		options += "--tls "
	}
	if c.DB > 0 {
		options += "-n " + strconv.Itoa(c.DB) + " "
	}
	return options
}
