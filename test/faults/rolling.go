package faults

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"ahprelay/test/procs"
)

// readyTime limits the time until a relay is ready again after it was replaced.
const readyTime = 30 * time.Second

// rollingRows returns the rows in which relays of a cluster of three are replaced under
// load. All three relays have clients, and are replaced one by one: the clients of a
// relay that ends must reconnect, no other client may be closed, and the other relays
// must stay ready. In the last row, a relay without clients is killed and starts with
// an empty data directory.
func rollingRows() (rows []Row) {
	nothing := func(context.Context, *procs.Site) error { return nil }
	for _, empty := range []bool{false, true} {
		what := "SIGTERM and start, one after the other"
		if empty {
			what += ", each with an empty data directory"
		}
		rows = append(rows, Row{
			Place: "all relays of three", Fault: what, others: 2, balanced: true, promise: promise{codes: []int{codeShutdown}, must: true},
			inject: nothing, heal: nothing,
			during: func(ctx context.Context, s *procs.Site) error { return replaceAll(ctx, s, empty) },
		})
	}
	return append(rows, Row{
		Place: "another relay of three", Fault: "kill -9, and start with an empty data directory", others: 2, inject: nothing, heal: nothing,
		during: func(ctx context.Context, s *procs.Site) error { return replaceOne(ctx, s, 0, syscall.SIGKILL, true) },
	})
}

func replaceAll(ctx context.Context, s *procs.Site, empty bool) error {
	for i := len(s.Others) - 1; i >= -1; i-- {
		if err := replaceOne(ctx, s, i, syscall.SIGTERM, empty); err != nil {
			return err
		}
	}
	return nil
}

func replaceOne(ctx context.Context, s *procs.Site, i int, sig syscall.Signal, empty bool) error {
	began := time.Now()
	ready, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	if err := s.Replace(ready, i, sig, empty); err != nil {
		return fmt.Errorf("relay %d, after %v: %w", i+1, time.Since(began), err)
	}
	return nil
}
