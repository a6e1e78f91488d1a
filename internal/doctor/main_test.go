package doctor_test

import (
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// A nats-server whose streams get more replicas leaves the stores that it had before open.
func TestMain(m *testing.M) {
	const server = "github.com/nats-io/nats-server/v2/server"
	testenv.Main(m, server+".(*fileStore).flushStreamStateLoop", server+"/ats.Register.func1")
}
