package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reply string
		level diag.Level
		text  string
	}{
		{"# Server\r\nredis_version:6.2.14\r\n", diag.Fail, "Redis 6.2.14 lacks functions"},
		{"redis_version:7.0.0\r\n", diag.OK, "Redis 7.0.0"},
		{"redis_version:10.1.0\r\n", diag.OK, "Redis 10.1.0"},
		{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n", diag.OK, "Valkey 8.1.1"},
		{"", diag.Fail, "lacks functions"},
	} {
		var r diag.Findings
		(&Redis{info: diag.ParseInfo(test.reply)}).version(t.Context(), &r)
		if len(r) != 1 || r[0].Level != test.level || !strings.Contains(r[0].Text, test.text) {
			t.Errorf("%q: %+v", test.reply, r)
		}
	}
}

func TestPersistenceFailing(t *testing.T) {
	t.Parallel()
	var r diag.Findings
	(&Redis{info: diag.Info{"aof_enabled": "1", "aof_last_write_status": "err",
		"rdb_last_bgsave_status": "ok"}}).persistence(t.Context(), &r)
	if r[0].Level != diag.Fail || !strings.Contains(r[0].Text, "AOF: err") {
		t.Errorf("%+v", r)
	}
	r = nil
	(&Redis{info: diag.Info{"aof_enabled": "0"}}).persistence(t.Context(), &r)
	if r[0].Level != diag.Warn || !strings.Contains(r[0].Text, "CONFIG GET does not show") {
		t.Errorf("%+v", r)
	}
}

func TestEviction(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy, used string
		level        diag.Level
		text         string
	}{
		{"noeviction", "900", diag.OK, "90 % of maxmemory used"},
		{"noeviction", "901", diag.Warn, "901 of 1000 bytes are used"},
		{"noeviction", "950", diag.Warn, "950 of 1000 bytes are used"},
		{"noeviction", "951", diag.Fail, "refuses new timers, or is about to"},
		{"noeviction", "1001", diag.Fail, "1001 of 1000 bytes are used"},
		{"volatile-ttl", "999", diag.Warn, "evicts the timers' keys"},
		{"allkeys-lru", "1", diag.Fail, "evicts the schedule itself"},
	} {
		var r diag.Findings
		(&Redis{info: diag.Info{"maxmemory": "1000", "maxmemory_policy": test.policy,
			"used_memory": test.used}}).eviction(t.Context(), &r)
		if len(r) != 1 || r[0].Level != test.level || !strings.Contains(r[0].Text, test.text) {
			t.Errorf("%s with %s: %+v", test.policy, test.used, r)
		}
	}
}

func TestClockDifference(t *testing.T) {
	t.Parallel()
	before := time.Now()
	after := before.Add(100 * time.Millisecond)
	for off, level := range map[time.Duration]diag.Level{
		0: diag.OK, 100 * time.Millisecond: diag.OK, -900 * time.Millisecond: diag.OK, 1050 * time.Millisecond: diag.OK,
		-1100 * time.Millisecond: diag.Warn, 1200 * time.Millisecond: diag.Warn, time.Hour: diag.Warn,
	} {
		var r diag.Findings
		r.Skew("Redis", before, after, before.Add(off))
		if len(r) != 1 || r[0].Level != level {
			t.Errorf("%v off: %+v", off, r)
		}
	}
}
