package acp

import (
	"testing"

	"go.uber.org/goleak"

	"ahprelay/test/acpagent"
)

func TestMain(m *testing.M) {
	acpagent.RunIfAsked()
	goleak.VerifyTestMain(m)
}
