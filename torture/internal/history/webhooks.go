package history

// Call is a call that the receiver of webhooks got.
type Call struct {
	WebhookID string `json:"webhookid"`
	Fault     string `json:"fault,omitempty"` // what is wrong with its signature or its body
	Key       string `json:"key"`             // and what follows: of the event in it
	EventID   string `json:"event"`
	Origin    string `json:"origin"` // the id of the first event of its timer, of that one too
	Attempt   int    `json:"attempt"`
	Payload   string `json:"payload,omitempty"` // see Digest
	Host      string `json:"host"`              // host:port that was called
	Path      string `json:"path"`
	Deliverer int    `json:"deliverer"` // which timerd deliver called
	Start     int    `json:"start"`     // how often that had been started
	At        int64  `json:"at"`
	Answered  int64  `json:"answered"`         // or given up
	Status    int    `json:"status,omitempty"` // 0: there was no answer
}

// Result is what a Delivery says came of it.
type Result string

// The results, as the log has them.
const (
	Delivered Result = "delivered"
	Retried   Result = "retry"
	Died      Result = "dead"
	Postponed Result = "postponed"
)

// Delivery is a record of the log of deliveries.
type Delivery struct {
	Fault   string `json:"fault,omitempty"` // why it cannot be read; then what follows is empty
	ID      string `json:"id"`              // of the event
	Origin  string `json:"origin"`          // the id of the first event of its timer, of that one too
	Key     string `json:"key"`
	Attempt int    `json:"attempt"`
	Host    string `json:"host,omitempty"`
	Status  int    `json:"status,omitempty"` // 0 without an answer
	Result  Result `json:"result"`
	Error   string `json:"error,omitempty"`
	Time    int64  `json:"time"`           // when it began
	Took    int64  `json:"took,omitempty"` // the call, in ms; 0 if there was none
	Stored  int64  `json:"stored"`         // by JetStream
}

// ModuleFixed is the module of those keys of HookApp whose receiver is in the file of endpoints, not in the payload.
const ModuleFixed = "fixed"

// Paths of the receiver: what becomes of a call depends on it.
const (
	PathUsual = "/hook"
	PathGone  = "/gone" // nobody wants these any more: 410
)
