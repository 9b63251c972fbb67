package broker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/broker"
)

// TestLostRequestsAreRepeated leaves the first two requests without an answer, as a new server in a
// cluster does. AskAgain must repeat the request, and return the third answer in less than half of
// the time limit.
func TestLostRequestsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 2 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		began, asked := time.Now(), 0
		answer, err := broker.AskAgain(ctx, func(ctx context.Context) (int, error) {
			if asked++; asked <= 2 {
				<-ctx.Done()
				return 0, context.Cause(ctx)
			}
			return 7, nil
		})
		if took := time.Since(began); answer != 7 || err != nil || took > limit/2 {
			t.Errorf("AskAgain = %d, %v after %v; want 7 in less than half of %v", answer, err, took, limit)
		}
	})
}

// TestAskAgainEnds first leaves all requests without an answer: AskAgain must return at the time
// limit. Then it refuses a request: AskAgain must return that error, and not ask again.
func TestAskAgainEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := broker.AskAgain(ctx, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
			t.Errorf("AskAgain = %v after %v; want the end of the time limit after it", err, took)
		}
		refused, asked := errors.New("refused"), 0
		_, err = broker.AskAgain(t.Context(), func(context.Context) (int, error) { asked++; return 0, refused })
		if !errors.Is(err, refused) || asked != 1 {
			t.Errorf("AskAgain = %v after %d requests; want the error of the first request", err, asked)
		}
	})
}
