package hostagent

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/test/locked"
)

// TestRefusedTokenIsReportedAtOnce gives a host-agent a sequence of answers from its relay. The
// host-agent must report a refusal of its token at once, and fail when refusals have lasted for
// refusedFor without success.
func TestRefusedTokenIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reported, failed := 0, 0
		r := &refusals{after: refusedFor, report: func(error) { reported++ }, fail: func(error) { failed++ }}
		revoked := error(&RefusedError{Status: 401, Text: "revoked"})
		for i, step := range []struct {
			wait             time.Duration
			err              error
			reported, failed int
		}{
			{0, nil, 0, 0},
			{0, revoked, 1, 0},
			{refusedFor - time.Second, revoked, 1, 0},
			{0, nil, 1, 0}, // the host-agent has read a new token file
			{time.Hour, revoked, 2, 0},
			{refusedFor, errors.New("relay http://127.0.0.1:1 cannot be reached"), 2, 0},
			{0, &RefusedError{Status: 404}, 2, 0}, // a proxy answers without a relay
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

// TestRefusedTokenEndsTheRun revokes the token of a running host-agent. The host-agent must log the
// refusal. Run must return the refusal, because it decides the exit status.
func TestRefusedTokenEndsTheRun(t *testing.T) {
	t.Parallel()
	relay, err := gateway.StartRelay(t.Context(), gateway.RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	token, err := relay.Keys().Tokens().IssueHost(auth.Enrolment{ID: "revoked", Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	said := &locked.Buffer{}
	agent, err := newAgent(t, func(c *Config) {
		c.Relays, c.Token = []string{relay.URL()}, func() (string, error) { return token, nil }
		c.Log = slog.New(slog.NewTextHandler(said, nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	if agent.givesUpAfter != time.Minute {
		t.Errorf("the limit after which the host-agent gives up is %v; want a minute", agent.givesUpAfter)
	}
	agent.givesUpAfter = time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(t.Context()) }()
	awaitText(t, said, `msg="lease acquired"`, 1)
	if err := relay.Revocations().Add(auth.Revocation{Token: "revoked", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	awaitText(t, said, `msg="token refused"`, 1)
	if err := <-ended; !TokenRefused(err) {
		t.Errorf("Run: %v; want the relay's refusal", err)
	}
}
