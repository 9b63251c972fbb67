package test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
	"ahprelay/test/idp"
	"ahprelay/test/testca"
)

func TestMain(m *testing.M) {
	if idp.Main() {
		return
	}
	if config := os.Getenv(relayEnv); config != "" {
		if err := serveRelay(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if _, err := testca.Certificate(); err != nil { // the certificate must exist before a test reads the system's authorities
		panic(err)
	}
	// The tests mostly wait. Therefore four run at a time, even on fewer processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
