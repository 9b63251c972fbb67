package routing_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain has each run test the same cases, so that a failure is the change's
// that it follows. make soak draws others, as does -rapid.seed.
func TestMain(m *testing.M) {
	flag.Parse()
	if seed := flag.Lookup("rapid.seed").Value; os.Getenv("SOAK") == "" && seed.String() == "0" {
		if err := seed.Set("1"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
