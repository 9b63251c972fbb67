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

	"ahprelay/test/acpagent"
	"ahprelay/test/idp"
)

func TestMain(m *testing.M) {
	acpagent.RunIfAsked()
	if !idp.Main() {
		// The tests mostly wait. Therefore twice as many tests as processors run at once,
		// unless -parallel is set.
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
			panic(err) // the flag exists, so this cannot fail
		}
		goleak.VerifyTestMain(tests{m})
	}
}

// tests runs all tests and then closes shared resources, such as browsers.
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

// ends holds the functions that tests runs at the end.
var ends struct {
	sync.Mutex
	all []func() error
}

// atEnd registers a function that runs after all tests. The last registered function
// runs first.
func atEnd(end func() error) {
	ends.Lock()
	defer ends.Unlock()
	ends.all = append(ends.all, end)
}
