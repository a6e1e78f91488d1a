package notify

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestReadAnswer(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]answer{
		`{"stream":"TIMERS","seq":1}`:                     {ok: true},
		`{"stream":"TIMERS", "seq":18446744073709551615}`: {ok: true},
		`{"stream":"TIMERS", "seq": 7 }`:                  {ok: true},
		`{"stream":"TIMERS","domain":"hub","seq":22}`:     {ok: true},
		`{"seq":22,"stream":"TIMERS"}`:                    {ok: true},
		`{"stream":"TIMERS", "seq":3,"duplicate": true}`:  {ok: true, duplicate: true},
		`{"stream":"TIMERS","seq":3,"duplicate":true}`:    {ok: true, duplicate: true},
		`{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"TIMERS","seq":0}`: {class: FailureFull},
		`{"stream":"TIMERS","error":{"code":503,"err_code":10077},"seq":0}`:                                        {class: FailureFull},
		`{"error":{"code":400,"err_code":10002},"stream":"TIMERS","seq":0}`:                                        {class: FailureFull},
		`{"error":{"code":500,"err_code":10047},"stream":"TIMERS","seq":0}`:                                        {class: FailureFull},
		`{"error":{"code":400,"err_code":10054},"stream":"TIMERS","seq":0}`:                                        {class: FailureTooLarge},
		`{"error":{"code":503,"err_code":10008}}`:                                                                  {class: FailureUnavailable},
		`{"error":{"code":503,"err_code":10039}}`:                                                                  {class: FailureUnavailable},
		`{"error":{"code":400,"err_code":10109},"stream":"TIMERS","seq":0}`:                                        {class: FailureRefused},
		`{"error":{"code":409,"err_code":10158}}`:                                                                  {class: FailureRefused},
	} {
		got, ok := readAnswer(&nats.Msg{Data: []byte(data)}, "TIMERS")
		if !ok || got.ok != want.ok || got.duplicate != want.duplicate || got.class != want.class ||
			(got.err == nil) != want.ok {
			t.Errorf("%s is read as %+v, %t, want %+v", data, got, ok, want)
		}
	}
	got, ok := readAnswer(&nats.Msg{Header: nats.Header{"Status": {"503"}}}, "TIMERS")
	if !ok || got.class != FailureNoStream {
		t.Errorf("no responders is read as %+v, %t", got, ok)
	}
	for _, data := range []string{``, `+ACK`, `{}`, `null`, `[]`, `{"stream":""}`, `{"seq":1}`, `{"stream":"TIMERS"`,
		`{"stream":5,"seq":1,"x":""}`,
		`{"stream":"TIMERS_DEAD","seq":1}`, `{"stream":"TIMERS_DEAD","seq":1,"duplicate":true}`,
		`{"stream":"TIMERS_DEAD","error":{"code":503,"err_code":10077}}`,
		`{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":404,"err_code":10059}}`,
	} {
		if got, ok := readAnswer(&nats.Msg{Data: []byte(data)}, "TIMERS"); ok {
			t.Errorf("%s is read as %+v, want it ignored", data, got)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte(`{"stream":"TIMERS", "seq":1}`))
	f.Add([]byte(`{"error":{"code":503,"err_code":10077},"stream":"TIMERS","seq":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, _ := readAnswer(&nats.Msg{Data: data}, "TIMERS")
		var ack struct {
			Error *struct{} `json:"error"`
		}
		if json.Unmarshal(data, &ack) == nil && ack.Error != nil && got.ok {
			t.Fatalf("%q is read as a success", data)
		}
	})
}
