// Package fixedseed has the property tests of whoever imports it draw the same
// in each run, so that a failure of make test is of the change that it follows.
// With the environment's SOAK set they draw others, as with -rapid.seed.
package fixedseed

import (
	"flag"
	"os"

	_ "pgregory.net/rapid" // registers the flag
)

func init() {
	if os.Getenv("SOAK") == "" {
		if err := flag.Set("rapid.seed", "1"); err != nil {
			panic(err)
		}
	}
}
