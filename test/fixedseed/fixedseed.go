// Package fixedseed makes the property tests of its importers draw the same values in
// each run, so that a failure of make test comes from the change under test. With SOAK
// in the environment they draw different values, as with -rapid.seed.
package fixedseed

import (
	"flag"
	"os"

	_ "pgregory.net/rapid" // registers the flag -rapid.seed
)

func init() {
	if os.Getenv("SOAK") == "" {
		if err := flag.Set("rapid.seed", "1"); err != nil {
			panic(err)
		}
	}
}
