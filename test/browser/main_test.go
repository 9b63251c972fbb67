//go:build !race

package browser_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"ahprelay/test/idp"
)

func TestMain(m *testing.M) {
	if !idp.Main() {
		// Tests wait for most of their time: as many again as there are processors run at once, unless -parallel says otherwise.
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
			panic(err) // there is no such flag
		}
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
