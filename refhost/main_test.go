package refhost_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	serveMCPIfAsked()
	goleak.VerifyTestMain(m)
}
