package hostagent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
)

// At a NATS server, a host-agent that has crashed and one whose network was cut
// look alike. So that the clients of the first hear of it at once, and those of
// the second do not, a host-agent starts a second process of its program, the
// sentinel, which knows the difference: the pipe that is its standard input ends
// with the host-agent. On it come lines of JSON, each a [sentinelInput] in place of the
// one before, and the last one is a farewell if the host-agent ends in good order.

// A sentinelInput is what a sentinel needs for telling relays that a host-agent has
// crashed. It goes through the pipe, and so may be secret.
type sentinelInput struct {
	Farewell bool     `json:"farewell,omitempty"` // the host-agent ends: nothing is to be done
	Relays   []string `json:"relays,omitempty"`
	NATSURLs []string `json:"natsUrls,omitempty"`
	Token    string   `json:"token,omitempty"`    // for enrolment, or a credential
	Key      []byte   `json:"key,omitempty"`      // that the credential is bound to
	Instance string   `json:"instance,omitempty"` // of the host-agent
}

// Bounds of a sentinel.
const (
	maxSentinelInput = 256 << 10 // bytes of a line

	// sentinelTime is how long a sentinel outlives its host-agent at most. The
	// lease has run out by then.
	sentinelTime = 30 * time.Second

	// askAgain is the wait before credentials are asked for again.
	askAgain = time.Second
)

// RunSentinel waits until the host-agent at the other end of a pipe has ended. If
// that did not say farewell, it gives the host up in its name, so that clients
// are told and another host-agent can serve the host at once. It tries that for
// half a minute, and returns why it could not.
func RunSentinel(pipe io.Reader, log *slog.Logger) error {
	in, err := readSentinelInput(pipe)
	if err != nil || in.Farewell || in.Instance == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sentinelTime)
	defer cancel()
	start := time.Now()
	if err := in.release(ctx); err != nil {
		return fmt.Errorf("host-agent %s crashed, and relays could not be told: %w", in.Instance, err)
	}
	log.Warn("host-agent crashed; relays know", "agent", in.Instance, "after", time.Since(start).Round(time.Millisecond))
	return nil
}

// readSentinelInput returns the last line when the pipe ends or has brought a farewell.
func readSentinelInput(pipe io.Reader) (in sentinelInput, err error) {
	debug.FreeOSMemory() // what the start of the program took is not needed again
	lines := bufio.NewScanner(pipe)
	lines.Buffer(make([]byte, 0, 4<<10), maxSentinelInput)
	for lines.Scan() {
		var next sentinelInput
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return sentinelInput{}, fmt.Errorf("sentinel: a line of the standard input is none of a host-agent's; only host-agent run starts this command: %w", err)
		}
		if in = next; in.Farewell {
			break
		}
	}
	return in, lines.Err()
}

// release releases the host of the instance that crashed.
func (in *sentinelInput) release(ctx context.Context) error {
	client := newHTTPClient()
	defer client.CloseIdleConnections()
	a, err := in.access(client)
	if err != nil {
		return err
	}
	userJWT, err := a.keepAsking(ctx)
	if err != nil {
		return err
	}
	conn, err := broker.DialAgent(ctx, a.natsConfig(a.natsURLs(), userJWT, broker.Events{}))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.AwaitConnected(ctx); err != nil {
		return err
	}
	return registry.ReleaseCrashed(ctx, registry.LeaseConfig{
		Conn: conn, Tenant: a.tenant, Host: a.host, Instance: in.Instance,
	}, registry.ReasonCrashed)
}

// access is the sentinel's own.
func (in *sentinelInput) access(client *http.Client) (*access, error) {
	a, err := newAccess(in.Relays, in.NATSURLs, func() (string, error) { return in.Token, nil }, client)
	if err == nil && in.Key != nil {
		a.hostKey = func() (*auth.HostKey, error) { return auth.ReadHostKey(in.Key) }
	}
	return a, err
}

// keepAsking gets credentials, from whichever relay can be reached first, until
// one refuses or ctx ends.
func (a *access) keepAsking(ctx context.Context) (userJWT string, err error) {
	for {
		userJWT, err := a.credentials(ctx)
		if err == nil || !temporary(err) {
			return userJWT, err
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return "", err
		}
	}
}

// sentinelInput is what this host-agent's sentinel needs to know.
func (a *Agent) sentinelInput() (sentinelInput, error) {
	token, err := a.token()
	in := sentinelInput{Relays: a.relays.inOrder(), NATSURLs: a.elsewhere, Token: token, Instance: a.instance}
	if err != nil || a.hostKey == nil {
		return in, err
	}
	key, err := a.hostKey()
	if err == nil {
		in.Key = key.Seed()
	}
	return in, err
}
