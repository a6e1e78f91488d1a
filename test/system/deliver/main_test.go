package deliver_test

import (
	"testing"

	"github.com/timerd-io/timerd/test/system"
)

func TestMain(m *testing.M) { system.Main(m) }
