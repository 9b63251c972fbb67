package sealed

import (
	"testing"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
