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
	"ahprelay/internal/clock"
	"ahprelay/internal/memory"
)

// The host-agent starts a second process of its program, the sentinel: see the package
// documentation. The sentinel's standard input is a pipe from the host-agent. The pipe
// carries lines of JSON: each is a [sentinelInput] that replaces the previous one. The
// last is a farewell if the host-agent ends in good order.

// A sentinelInput holds the data with which a sentinel reports a crash. It may contain
// secrets, because it goes through the pipe.
type sentinelInput struct {
	Farewell bool     `json:"farewell,omitempty"` // the host-agent ends in good order
	Relays   []string `json:"relays,omitempty"`
	NATSURLs []string `json:"natsUrls,omitempty"`
	Token    string   `json:"token,omitempty"`    // enrolment token or credential
	Key      []byte   `json:"key,omitempty"`      // bound to the credential
	Instance string   `json:"instance,omitempty"` // the host-agent's instance
}

// Bounds of a sentinel.
const (
	maxSentinelInput = 256 << 10 // longest line, in bytes

	// sentinelTime is the longest time that a sentinel runs after its host-agent has
	// ended. The lease has expired by then.
	sentinelTime = 30 * time.Second

	// askAgain is the pause between requests for credentials.
	askAgain = time.Second
)

// RunSentinel waits until the host-agent at the other end of the pipe has ended. If no
// farewell arrived, RunSentinel releases the host for that host-agent, so relays close
// its clients and the next host-agent can serve the host at once. It tries for at most
// sentinelTime, and returns the last error.
func RunSentinel(pipe io.Reader, log *slog.Logger) error {
	in, err := readSentinelInput(pipe)
	if err != nil || in.Farewell || in.Instance == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sentinelTime)
	defer cancel()
	start := time.Now()
	if err := in.release(ctx); err != nil {
		return fmt.Errorf("host-agent %s crashed, and its host was not released: %w", in.Instance, err)
	}
	log.Warn("host of a crashed host-agent released", "agent", in.Instance, "after", time.Since(start).Round(time.Millisecond))
	return nil
}

// readSentinelInput returns the last line once the pipe ends or a farewell arrives.
func readSentinelInput(pipe io.Reader) (in sentinelInput, err error) {
	debug.FreeOSMemory() // the program's start needed more memory than the sentinel
	memory.ReleaseCode()
	lines := bufio.NewScanner(pipe)
	lines.Buffer(make([]byte, 0, 4<<10), maxSentinelInput)
	for lines.Scan() {
		var next sentinelInput
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return sentinelInput{}, fmt.Errorf("sentinel: malformed standard input; this command is started by \"host-agent run\" only: %w", err)
		}
		if in = next; in.Farewell {
			break
		}
	}
	return in, lines.Err()
}

// release releases the host for the crashed instance.
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
	conn, err := broker.DialAgent(ctx, a.natsConfig(a.natsURLs(), userJWT, nil, broker.Events{}))
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

// access returns an access with the sentinel's own nkey.
func (in *sentinelInput) access(client *http.Client) (*access, error) {
	a, err := newAccess(in.Relays, in.NATSURLs, func() (string, error) { return in.Token, nil }, client)
	if err == nil && in.Key != nil {
		a.hostKey = func() (*auth.HostKey, error) { return auth.ReadHostKey(in.Key) }
	}
	return a, err
}

// keepAsking requests credentials from the relays, one after the other, until a relay
// issues or refuses them or ctx ends.
func (a *access) keepAsking(ctx context.Context) (userJWT string, err error) {
	for {
		userJWT, err := a.credentials(ctx)
		if err == nil || !temporary(err) {
			return userJWT, err
		}
		if !clock.Sleep(ctx, askAgain) {
			return "", err
		}
	}
}

// sentinelInput returns the current input for this host-agent's sentinel.
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
