package diag

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// Clients says how redis-cli and nats reach timerd's servers. Credentials are no part of it. The zero value leaves commands as they are.
type Clients struct {
	Redis    string // host:port, or the path of a socket; "" if it is not known
	Sentinel string // host:port of a sentinel that knows the server; "" for none
	Master   string // what that sentinel calls it
	DB       int
	TLS      bool   // of Redis
	NATS     string // URLs without credentials; "" for the default of nats
}

// On returns the same for commands about one server of a Redis Cluster, host:port; with "" it returns c.
func (c Clients) On(server string) Clients {
	if server != "" {
		c.Redis = server
	}
	return c
}

// Address has the commands in fixes reach timerd's servers. A command that has options stays as it is, so whoever knows the server
// comes first.
func (c Clients) Address(all Findings) {
	var with []string
	if options := c.redisOptions(); options != "" {
		for letter := 'A'; letter <= 'Z'; letter++ { // as the commands of Redis begin
			with = append(with, "redis-cli "+string(letter), "redis-cli "+options+string(letter))
		}
	}
	if c.NATS != "" {
		options := "nats -s " + Word(c.NATS)
		with = append(with, "nats stream ", options+" stream ", "nats consumer ", options+" consumer ")
	}
	commands := strings.NewReplacer(with...)
	for i := range all {
		all[i].Fix = commands.Replace(all[i].Fix)
	}
}

// redisOptions returns the options of redis-cli, each with a space behind it; "" for its defaults. Which server is the master the sentinel is
// asked when the command is run, since that changes.
func (c Clients) redisOptions() (options string) {
	host, port, err := net.SplitHostPort(c.Redis)
	switch {
	case strings.HasPrefix(c.Redis, "/"):
		options = "-s " + Word(c.Redis) + " "
	case c.Redis == "" && c.Sentinel != "":
		sentinel := Clients{Redis: c.Sentinel, TLS: c.TLS}.redisOptions()
		// Without an answer -h has no host, so that the command fails rather than goes to this machine.
		options = "-h $(redis-cli " + sentinel + "SENTINEL GET-MASTER-ADDR-BY-NAME " + Word(c.Master) + " | sed '2s/^/-p /') "
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
