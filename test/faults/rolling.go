package faults

import (
	"context"
	"fmt"
	"time"

	"ahprelay/test/procs"
)

// readyTime bounds the time until a replaced relay is ready.
const readyTime = 30 * time.Second

// rollingRows replace all three relays of a cluster under load, with clients at each. The
// clients of a relay that ends are asked to reconnect, and no other client is closed. All
// other relays stay ready meanwhile.
func rollingRows() (rows []Row) {
	for _, empty := range []bool{false, true} {
		what := "SIGTERM and start, one after the other"
		if empty {
			what += ", each with an empty data directory"
		}
		rows = append(rows, Row{
			Place: "all relays of three", Fault: what, others: 2, balanced: true, promise: promise{codes: []int{codeShutdown}, must: true},
			inject: func(context.Context, *procs.Site) error { return nil },
			heal:   func(context.Context, *procs.Site) error { return nil },
			during: func(ctx context.Context, s *procs.Site) error { return replaceAll(ctx, s, empty) },
		})
	}
	return rows
}

func replaceAll(ctx context.Context, s *procs.Site, empty bool) error {
	for i := len(s.Others) - 1; i >= -1; i-- {
		began := time.Now()
		ready, cancel := context.WithTimeout(ctx, readyTime)
		err := s.Replace(ready, i, empty)
		cancel()
		if err != nil {
			return fmt.Errorf("relay %d, after %v: %w", i+1, time.Since(began), err)
		}
	}
	return nil
}
