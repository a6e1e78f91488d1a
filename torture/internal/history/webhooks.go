package history

// Call is a call to the receiver of webhooks.
type Call struct {
	WebhookID string `json:"webhookid"`
	Fault     string `json:"fault,omitempty"` // the fault of its signature or its body
	Key       string `json:"key"`             // of the event, like the following fields
	EventID   string `json:"event"`
	Origin    string `json:"origin"` // the id of its timer's first event, on that one too
	Attempt   int    `json:"attempt"`
	Payload   string `json:"payload,omitempty"` // see Digest
	Host      string `json:"host"`              // host:port that was called
	Path      string `json:"path"`
	Deliverer int    `json:"deliverer"` // the number of the calling timerd deliver
	Start     int    `json:"start"`     // the number of its starts
	At        int64  `json:"at"`
	Answered  int64  `json:"answered"`         // or given up
	Status    int    `json:"status,omitempty"` // 0: there was no answer
}

// Result is the result of a Delivery.
type Result string

// The results in the log of deliveries.
const (
	Delivered Result = "delivered"
	Retried   Result = "retry"
	Died      Result = "dead"
	Postponed Result = "postponed"
)

// Delivery is a record of the log of deliveries.
type Delivery struct {
	Fault   string `json:"fault,omitempty"` // the reason why it is unreadable; then the rest is empty
	ID      string `json:"id"`              // of the event
	Origin  string `json:"origin"`          // the id of its timer's first event, on that one too
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

// ModuleFixed is the module of HookApp's keys whose receiver is in the file of endpoints, not in the payload.
const ModuleFixed = "fixed"

// Paths of the receiver. They decide its answer to a call.
const (
	PathUsual = "/hook"
	PathGone  = "/gone" // nobody wants these any more: 410
)
