package servers

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// timerdUser is the name of timerd's user in Redis and in NATS, and also the password.
const timerdUser = "timerd"

// asTimerd returns a URL of Redis with timerd's user.
func asTimerd(url string) string {
	return strings.Replace(url, "://", "://"+timerdUser+":"+timerdUser+"@", 1)
}

// allRights are the rights of timerd's user in Redis.
func allRights() []string { return []string{"~*", "&*", "+@all"} }

// narrowRights are the rights to named apps only: to all apps except the narrow one.
func narrowRights() []string {
	rights := []string{"resetkeys", "~timerd:*", "~" + history.ElsewhereApp + ":*"}
	for _, app := range history.Namespaces() {
		if app != history.NarrowApp {
			rights = append(rights, "~"+app+":*")
		}
	}
	return rights
}

// TakeRights takes away timerd's rights to the keys of the narrow app, on all servers of Redis.
func (s *System) TakeRights(ctx context.Context) error { return s.setRights(ctx, narrowRights()) }

// GiveRights gives the rights of TakeRights back.
func (s *System) GiveRights(ctx context.Context) error { return s.setRights(ctx, allRights()) }

func (s *System) setRights(ctx context.Context, rights []string) error {
	args := []any{"ACL", "SETUSER", timerdUser}
	for _, r := range rights {
		args = append(args, r)
	}
	return s.onServers(func(c *redis.Client) error { return c.Do(ctx, args...).Err() })
}

// onServers calls a function with each server of Redis.
func (s *System) onServers(do func(*redis.Client) error) error {
	var errs []error
	for _, c := range s.Redis.Servers() {
		errs = append(errs, do(c))
	}
	return errors.Join(errs...)
}
