package listener

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// NotifyFlags are the flags of notify-keyspace-events that timerd uses: both kinds of channel (KE), generic commands
// (g), strings ($), hashes (h), expiry (x) and eviction (e).
const NotifyFlags = "KEg$hxe"

// parameter is the name of the server's setting.
const parameter = "notify-keyspace-events"

// MissingFlags returns the flags of NotifyFlags that a value of notify-keyspace-events lacks.
func MissingFlags(value string) string {
	if strings.Contains(value, "A") {
		value += "g$hxe"
	}
	return strings.Map(func(flag rune) rune {
		if strings.ContainsRune(value, flag) {
			return -1
		}
		return flag
	}, NotifyFlags)
}

// enableFlags switches on the missing flags and leaves the others as they are. It returns the flags that were missing,
// "" for none. Its error names other ways to switch them on.
func enableFlags(ctx context.Context, rdb *redis.Client) (missing string, err error) {
	current, err := rdb.ConfigGet(ctx, parameter).Result()
	if err != nil {
		return "", flagsError(NotifyFlags, err)
	}
	value := current[parameter]
	if missing = MissingFlags(value); missing == "" {
		return "", nil
	}
	if err := rdb.ConfigSet(ctx, parameter, AddFlags(value)).Err(); err != nil {
		return missing, flagsError(value+missing, err)
	}
	return missing, nil
}

// AddFlags returns a value of notify-keyspace-events with the missing flags of NotifyFlags added.
func AddFlags(value string) string {
	want := value + MissingFlags(value)
	if strings.Contains(value, "A") && !strings.Contains(value, "n") {
		// Redis 7.0 does not show the flag n beside A. Setting n costs a little; leaving n out might take it from
		// another client.
		want += "n"
	}
	return want
}

func flagsError(want string, err error) error {
	return fmt.Errorf("cannot switch on keyspace events (%w); set %s to %q in redis.conf, by the service's own "+
		"setting in a managed Redis, or by CONFIG SET as an administrator; where none of these is possible, set "+
		"TIMERD_KEYSPACE_EVENTS=off", err, parameter, want)
}
