package registry

import (
	"flag"
	"os"
	"testing"
)

// TestMain has more tests wait side by side than there are processors: servers that
// come and go take their time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
