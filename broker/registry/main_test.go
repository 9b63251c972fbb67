package registry

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more parallel tests than there are processors, because servers start
// and stop slowly.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
