//go:build !race

package browser_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"ahprelay/test/idp"
)

func TestMain(m *testing.M) {
	if !idp.Main() {
		goleak.VerifyTestMain(tests{m})
	}
}

// tests are all tests, and then the end of what they share.
type tests struct{ *testing.M }

func (t tests) Run() int {
	code := t.M.Run()
	ends.Lock()
	defer ends.Unlock()
	for i := range ends.all {
		if err := ends.all[len(ends.all)-1-i](); err != nil {
			fmt.Fprintln(os.Stderr, "--- FAIL: what the tests share:", err)
			code = max(code, 1)
		}
	}
	return code
}

// ends end what tests share.
var ends struct {
	sync.Mutex
	all []func() error
}

// atEnd has something happen when all tests are over, the last first.
func atEnd(end func() error) {
	ends.Lock()
	defer ends.Unlock()
	ends.all = append(ends.all, end)
}
