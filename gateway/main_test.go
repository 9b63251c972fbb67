package gateway

import (
	"testing"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
	"ahprelay/test/idp"
)

func TestMain(m *testing.M) {
	if !idp.Main() {
		goleak.VerifyTestMain(m)
	}
}
