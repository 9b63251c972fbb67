package hostagent

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRefusedToken: a running host-agent reports the refusal of its token at once, and
// gives up after a minute of refusals in a row.
func TestRefusedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reported, failed := 0, 0
		r := &refusals{report: func(error) { reported++ }, fail: func(error) { failed++ }}
		revoked := error(&RefusedError{Status: 401, Text: "revoked"})
		for i, step := range []struct {
			wait             time.Duration
			err              error
			reported, failed int
		}{
			{0, nil, 0, 0},
			{0, revoked, 1, 0},
			{refusedFor - time.Second, revoked, 1, 0},
			{0, nil, 1, 0}, // a new token file
			{time.Hour, revoked, 2, 0},
			{refusedFor, errors.New("relay http://127.0.0.1:1 cannot be reached"), 2, 0},
			{0, &RefusedError{Status: 404}, 2, 0}, // a proxy without a relay
			{0, revoked, 2, 1},
		} {
			time.Sleep(step.wait)
			r.answered(step.err)
			if reported != step.reported || failed != step.failed {
				t.Fatalf("step %d: %d reports and %d failures; want %d and %d", i, reported, failed, step.reported, step.failed)
			}
		}
	})
}
