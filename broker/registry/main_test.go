package registry

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs six parallel tests at once, however few processors there are, because servers start
// and stop slowly.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
