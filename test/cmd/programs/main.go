// Command programs builds the programs that tests run as processes. Otherwise, the
// tests of several packages would compile the same code at the same time.
package main

import (
	"context"
	"errors"
	"log"
	"sync"

	"ahprelay/test/procs"
)

func main() {
	var errs [2]error
	var wg sync.WaitGroup
	for i, build := range []func(context.Context) (string, error){procs.Build, procs.BuildConnect} {
		wg.Go(func() { _, errs[i] = build(context.Background()) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		log.Fatal(err)
	}
}
