package agenthost_test

import (
	"testing"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) {
	serveMCPIfAsked()
	goleak.VerifyTestMain(m)
}
