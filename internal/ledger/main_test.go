package ledger_test

import (
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
