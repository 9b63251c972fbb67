package store

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/test/natssite"
)

// An unreachable is a JetStream that answers each request for a stream with an error.
type unreachable struct {
	jetstream.JetStream
	ask func() error
}

func (u unreachable) Stream(context.Context, string) (jetstream.Stream, error) { return nil, u.ask() }

// An outage is a stream that gives no answer for some time.
type outage struct {
	jetstream.Stream
	until time.Time
}

func (o outage) Info(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	if time.Now().Before(o.until) {
		return nil, errors.New("no answer")
	}
	return &jetstream.StreamInfo{}, nil
}

// TestLongOutageReadsTheWholeStream lets a stream give no answer for some time. If markers of removed records
// may have expired meanwhile, the Store must read the whole stream again; else it must not.
func TestLongOutageReadsTheWholeStream(t *testing.T) {
	for silent, want := range map[time.Duration]error{time.Minute: context.DeadlineExceeded, removedBrief: errSilent} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			s := &Store{}
			if err := s.tend(ctx, outage{until: time.Now().Add(silent)}, time.Time{}); !errors.Is(err, want) {
				t.Errorf("after %v without an answer: %v; want %v", silent, err, want)
			}
		})
	}
}

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
