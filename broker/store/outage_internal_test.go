package store

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/test/natssite"
)

// An unreachable is a JetStream that answers each request for a stream with an error.
type unreachable struct {
	jetstream.JetStream
	ask func() error
}

func (u unreachable) Stream(context.Context, string) (jetstream.Stream, error) { return nil, u.ask() }

// TestEachOutageIsLoggedOnce follows a store that is unreachable three times, each time for several
// attempts. The log must have one line for each outage.
func TestEachOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		log := natssite.LogLines{Lines: make(chan string, 100)}
		s := &Store{cfg: Config{Name: "records", Log: slog.New(log)}}
		attempts := 0
		s.js = unreachable{ask: func() error {
			switch attempts++; {
			case attempts%5 == 0: // the store was read, and then lost
				s.mu.Lock()
				s.err = nil
				s.mu.Unlock()
			case attempts == 14:
				stop()
			}
			return errors.New("no answer")
		}}
		s.follow(ctx)
		close(log.Lines)
		var lines []string
		for line := range log.Lines {
			lines = append(lines, line)
		}
		if len(lines) != 3 {
			t.Errorf("the log has %q for three outages; want one line for each", lines)
		}
	})
}
