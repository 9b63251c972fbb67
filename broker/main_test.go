package broker_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) {
	// Tests that call Parallel wait most of the time, so 16 run at once, however few processors
	// there are.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
