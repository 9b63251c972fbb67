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
	"ahprelay/registry"
)

// At a NATS server, a host-agent that has crashed and one whose network was cut
// look alike. So that the clients of the first hear of it at once, and those of
// the second do not, a host-agent starts a second process of its program, the
// sentinel, which knows the difference: the pipe that is its standard input ends
// with the host-agent. On it come lines of JSON, each a [will] in place of the one
// before, and the last one is a farewell if the host-agent ends in good order.

// A will is what a sentinel needs for telling relays that a host-agent has
// crashed. It goes through the pipe, and so may be secret.
type will struct {
	Farewell bool     `json:"farewell,omitempty"` // the host-agent ends: nothing is to be done
	Relays   []string `json:"relays,omitempty"`
	NATSURLs []string `json:"natsUrls,omitempty"`
	Token    string   `json:"token,omitempty"`    // for enrolment, or a credential
	Key      []byte   `json:"key,omitempty"`      // that the credential is bound to
	Instance string   `json:"instance,omitempty"` // of the host-agent
}

// Bounds of a sentinel.
const (
	maxWill = 256 << 10 // bytes of a line

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
	w, err := readWill(pipe)
	if err != nil || w.Farewell || w.Instance == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sentinelTime)
	defer cancel()
	start := time.Now()
	if err := w.execute(ctx); err != nil {
		return fmt.Errorf("host-agent %s crashed, and relays could not be told: %w", w.Instance, err)
	}
	log.Warn("host-agent crashed; relays know", "agent", w.Instance, "after", time.Since(start).Round(time.Millisecond))
	return nil
}

// readWill returns the last will when the pipe ends or has brought a farewell.
func readWill(pipe io.Reader) (w will, err error) {
	debug.FreeOSMemory() // what the start of the program took is not needed again
	lines := bufio.NewScanner(pipe)
	lines.Buffer(make([]byte, 0, 4<<10), maxWill)
	for lines.Scan() {
		var next will
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return will{}, fmt.Errorf("sentinel: a line of the standard input is no will; only host-agent run starts this command: %w", err)
		}
		if w = next; w.Farewell {
			break
		}
	}
	return w, lines.Err()
}

// execute releases the host of the will's instance.
func (w *will) execute(ctx context.Context) error {
	client := newHTTPClient()
	defer client.CloseIdleConnections()
	a, err := w.access(client)
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
		Conn: conn, Tenant: a.tenant, Host: a.host, Instance: w.Instance,
	}, registry.ReasonCrashed)
}

// access is the sentinel's own.
func (w *will) access(client *http.Client) (*access, error) {
	a, err := newAccess(w.Relays, w.NATSURLs, func() (string, error) { return w.Token, nil }, client)
	if err == nil && w.Key != nil {
		a.hostKey = func() (*auth.HostKey, error) { return auth.ReadHostKey(w.Key) }
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

// will is what this host-agent's sentinel needs to know.
func (a *Agent) will() (will, error) {
	token, err := a.token()
	w := will{Relays: a.relays.inOrder(), NATSURLs: a.elsewhere, Token: token, Instance: a.instance}
	if err != nil || a.hostKey == nil {
		return w, err
	}
	key, err := a.hostKey()
	if err == nil {
		w.Key = key.Seed()
	}
	return w, err
}
