package doctor

import (
	"strings"
	"testing"
	"time"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reply string
		level Level
		text  string
	}{
		{"# Server\r\nredis_version:6.2.14\r\n", Fail, "Redis 6.2.14 lacks functions"},
		{"redis_version:7.0.0\r\n", OK, "Redis 7.0.0"},
		{"redis_version:10.1.0\r\n", OK, "Redis 10.1.0"},
		{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n", OK, "Valkey 8.1.1"},
		{"", Fail, "lacks functions"},
	} {
		var r report
		proceed := new(Redis).version(parseInfo(test.reply), &r)
		if len(r) != 1 || r[0].Level != test.level || !strings.Contains(r[0].Text, test.text) || proceed != (test.level == OK) {
			t.Errorf("%q: %+v, %t", test.reply, r, proceed)
		}
	}
}

func TestPersistenceFailing(t *testing.T) {
	t.Parallel()
	var r report
	new(Redis).persistence(info{"aof_enabled": "1", "aof_last_write_status": "err", "rdb_last_bgsave_status": "ok"}, nil, &r)
	if r[0].Level != Fail || !strings.Contains(r[0].Text, "AOF: err") {
		t.Errorf("%+v", r)
	}
	r = nil
	new(Redis).persistence(info{"aof_enabled": "0"}, nil, &r)
	if r[0].Level != Warn || !strings.Contains(r[0].Text, "CONFIG GET does not show") {
		t.Errorf("%+v", r)
	}
}

func TestEviction(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy, used string
		level        Level
		text         string
	}{
		{"noeviction", "900", OK, "90 % of maxmemory used"},
		{"noeviction", "901", Warn, "901 of 1000 bytes are used"},
		{"noeviction", "950", Warn, "950 of 1000 bytes are used"},
		{"noeviction", "951", Fail, "refuses new timers, or is about to"},
		{"noeviction", "1001", Fail, "1001 of 1000 bytes are used"},
		{"volatile-ttl", "999", Warn, "evicts the timers' keys"},
		{"allkeys-lru", "1", Fail, "evicts the schedule itself"},
	} {
		var r report
		new(Redis).eviction(info{"maxmemory": "1000", "maxmemory_policy": test.policy, "used_memory": test.used}, &r)
		if len(r) != 1 || r[0].Level != test.level || !strings.Contains(r[0].Text, test.text) {
			t.Errorf("%s with %s: %+v", test.policy, test.used, r)
		}
	}
}

func TestSkew(t *testing.T) {
	t.Parallel()
	before := time.Now()
	after := before.Add(100 * time.Millisecond)
	for off, level := range map[time.Duration]Level{
		0: OK, 100 * time.Millisecond: OK, -900 * time.Millisecond: OK, 1050 * time.Millisecond: OK,
		-1100 * time.Millisecond: Warn, 1200 * time.Millisecond: Warn, time.Hour: Warn,
	} {
		var r report
		skew(checkRedisClock, "Redis", before, after, before.Add(off), &r)
		if len(r) != 1 || r[0].Level != level {
			t.Errorf("%v off: %+v", off, r)
		}
	}
}
