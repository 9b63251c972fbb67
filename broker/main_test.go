package broker_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) {
	// The tests that call Parallel wait most of the time, so more of them than
	// there are processors can do so.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
