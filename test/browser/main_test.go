//go:build !race

package browser_test

import (
	"testing"

	"go.uber.org/goleak"

	"ahprelay/test/idp"
)

func TestMain(m *testing.M) {
	if !idp.Main() {
		goleak.VerifyTestMain(m)
	}
}
