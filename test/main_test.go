package test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(relayEnv); config != "" {
		if err := serveRelay(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
