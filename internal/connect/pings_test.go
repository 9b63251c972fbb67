package connect

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// absentTokens are the tokens of a relay that does not answer.
type absentTokens struct{}

func (absentTokens) token(ctx context.Context, _ string, _ auth.Access, _ string) (string, time.Time, error) {
	<-ctx.Done()
	return "", time.Time{}, ctx.Err()
}

func (absentTokens) remedy(string) string { return "" }

// fixedTokens are always the same token, which is valid for an hour.
type fixedTokens struct{ absentTokens }

func (fixedTokens) token(context.Context, string, auth.Access, string) (string, time.Time, error) {
	return "token", time.Now().Add(time.Hour), nil
}

// pinger is a local client that sends pings, and leaves after some time.
type pinger struct {
	pings, sent int
	stays       time.Duration

	mu      sync.Mutex
	answers int
}

// Read implements [Messages].
func (p *pinger) Read() ([]byte, error) {
	if p.sent++; p.sent <= p.pings {
		return []byte(`{"jsonrpc":"2.0","id":` + strconv.Itoa(p.sent) + `,"method":"ping","params":{"channel":"ahp-root://"}}`), nil
	}
	time.Sleep(p.stays)
	return nil, errLocalGone
}

// Write implements [Messages].
func (p *pinger) Write([]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers++
	return nil
}

// Close implements [Messages].
func (p *pinger) Close(ahp.CloseCode, string) {}

// TestClientLeavesWhilePingsAreAnswered lets a client send pings while the relay is not reached, and
// leave at the moment at which ahp-connect answers the pings itself. The end of the connection and the
// answers must not race: with the race detector, the test fails otherwise.
func TestClientLeavesWhilePingsAreAnswered(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			client := &pinger{pings: 30, stays: pingPatience}
			ServeLocal(t.Context(), client, NewRelay("http://relay.invalid", absentTokens{}), "host", "", slog.New(slog.DiscardHandler))
			synctest.Wait()
			time.Sleep(time.Hour)
			client.mu.Lock()
			defer client.mu.Unlock()
			if client.answers > client.pings {
				t.Errorf("the client got %d answers to %d pings", client.answers, client.pings)
			}
		})
	}
}

// TestRelayAnswersNoPingOfASealedHost has ahp-connect answer a ping itself. The relay of a sealed host then
// sends an unsealed answer to that ping. The host's own answer, which comes later, must still be dropped:
// otherwise the client gets two answers to one ping.
func TestRelayAnswersNoPingOfASealedHost(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":7,"result":null}`
	p := &pipe{pings: []*ping{{id: []byte("7"), answered: true, timer: time.NewTimer(time.Hour)}}}
	if p.isOurs([]byte(answer), true) {
		t.Error("the relay's answer counts as the host's answer to the ping; want it ignored")
	}
	if !p.isOurs([]byte(answer), false) {
		t.Error("the host's answer behind the relay's reaches the client; want it dropped")
	}
	if p.isOurs([]byte(answer), false) {
		t.Error("a second answer of the host is dropped; want it passed")
	}
}

// TestTokenIsNotKeptWhileTheMachineSleeps gets a token. The time until which ahp-connect keeps it must
// have no reading of the monotonic clock: that clock stands still while a laptop sleeps, so
// ahp-connect would use the token after its expiry.
func TestTokenIsNotKeptWhileTheMachineSleeps(t *testing.T) {
	_, until, err := NewRelay("http://relay.invalid", fixedTokens{}).Token(t.Context(), "host", "")
	if err != nil || until != until.Round(0) {
		t.Errorf("the token is kept until %v, %v; want a time without a monotonic reading", until, err)
	}
}
