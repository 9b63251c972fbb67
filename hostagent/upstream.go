package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/internal/clock"
)

// An Upstream is the address of the AHP host. Exactly one of URL, Command and Local is
// set.
type Upstream struct {
	Local *Local // a host in this process

	URL     string   // ws://…, wss://…, unix:/path for a WebSocket over a Unix socket, or lock:/path of VS Code's lock file
	Command []string // a program that speaks AHP on its standard input and output, one message per line

	// TokenFile holds the host's connection token (?tkn=), if it requires one. It is
	// read anew for each connection.
	TokenFile string

	// Stderr receives a Command's standard error. Default: discarded.
	Stderr io.Writer

	caller   *caller       // the client behind the connection; nil for the host-agent itself
	accepted func()        // called when the connection is accepted; may be nil
	unacked  time.Duration // how long the host's machine may acknowledge nothing; 0 for the system's limit
}

// String returns the upstream without secrets, for the log.
func (u Upstream) String() string {
	if u.Local != nil {
		return u.Local.name
	}
	if len(u.Command) > 0 {
		return u.Command[0]
	}
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return "(malformed URL)"
	}
	parsed.RawQuery, parsed.User, parsed.Fragment = "", nil, ""
	return parsed.String()
}

// port returns the host's TCP port in a list, by default 80 or 443. The list is empty for
// a command or a socket.
func (u Upstream) port() []string {
	if u.Local != nil {
		return nil
	}
	u, _, err := u.locked()
	if err != nil {
		return nil
	}
	parsed, err := url.Parse(u.URL)
	switch {
	case err != nil || parsed.Host == "":
		return nil
	case parsed.Port() != "":
		return []string{parsed.Port()}
	case parsed.Scheme == "wss":
		return []string{"443"}
	}
	return []string{"80"}
}

// HostFiles states whether the host uses the file system of the host-agent's machine. If
// so, the host-agent resolves symbolic links before it judges a path.
type HostFiles string

// Values of HostFiles.
const (
	HostFilesAuto     HostFiles = "auto"     // shared if the upstream is a command, a Unix socket, a lock file, a loopback address or in this process
	HostFilesShared   HostFiles = "shared"   // shared
	HostFilesSeparate HostFiles = "separate" // not shared
)

// shared resolves HostFiles for an upstream.
func (f HostFiles) shared(u Upstream) bool {
	if f == HostFilesShared || f == HostFilesSeparate {
		return f == HostFilesShared
	}
	return u.isHere()
}

// isHere reports whether the host seems to be on this machine.
func (u Upstream) isHere() bool {
	if len(u.Command) > 0 || u.Local != nil {
		return true
	}
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return true // an upstream without an address
	}
	return parsed.Scheme == "unix" || parsed.Scheme == lockScheme || isLoopback(parsed.Hostname())
}

// Check returns an error if the upstream cannot be valid. It does not connect.
func (u Upstream) Check() error {
	if u.Local != nil && (u.URL != "" || len(u.Command) > 0 || u.TokenFile != "") {
		return errors.New("upstream: a host in this process has neither URL nor command nor token")
	}
	if u.Local != nil {
		return nil
	}
	if (u.URL == "") == (len(u.Command) == 0) {
		return errors.New("upstream: want either a URL (ws://, wss://, unix: or lock:) or a command behind --")
	}
	if u.TokenFile != "" {
		if _, err := u.token(); err != nil {
			return err
		}
	}
	if len(u.Command) > 0 {
		if u.TokenFile != "" {
			return errors.New("upstream: a token file requires a URL; pass secrets to a command in its environment")
		}
		if _, err := exec.LookPath(u.Command[0]); err != nil {
			return fmt.Errorf("upstream: command %q: %w", u.Command[0], err)
		}
		return nil
	}
	return u.checkURL()
}

// checkURL returns the error in the URL of an upstream, if any.
func (u Upstream) checkURL() error {
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return errMalformed
	}
	switch {
	case (parsed.Scheme == "unix" || parsed.Scheme == lockScheme) && parsed.Path == "":
		return fmt.Errorf("upstream %q: want %s:/path/to/%s", u, parsed.Scheme, map[string]string{"unix": "socket", lockScheme: "file"}[parsed.Scheme])
	case parsed.Scheme == lockScheme && u.TokenFile != "":
		return fmt.Errorf("upstream %q: the lock file contains the token; remove --upstream-token-file", u)
	case parsed.Scheme == "unix", parsed.Scheme == lockScheme:
		return nil
	case parsed.Scheme != "ws" && parsed.Scheme != "wss":
		return fmt.Errorf("upstream %q: scheme is %q; want ws://, wss://, unix:/path or lock:/path", u, parsed.Scheme)
	case parsed.Host == "":
		return fmt.Errorf("upstream %q: no host in the URL", u)
	case !broker.HasAddress(parsed):
		return fmt.Errorf("upstream %q: want host:port, with a port up to 65535, and an IPv6 address in brackets", u)
	}
	return nil
}

var errMalformed = errors.New("upstream: the URL is malformed; want ws://host:port, wss://host, unix:/path or lock:/path")

func (u Upstream) token() (string, error) {
	b, err := os.ReadFile(u.TokenFile)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errUpstreamToken, err)
	}
	token := auth.TokenIn(b)
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%w %s: want one token on one line", errUpstreamToken, u.TokenFile)
	}
	return token, nil
}

// A hostSocket carries whole messages to and from the AHP host. One goroutine may read
// while another writes. Close ends both.
type hostSocket interface {
	// Read returns the next message. A message of up to [routing.MaxLent] bytes is valid
	// until the next Read; a longer one belongs to the caller. If a request or response
	// is above the limit, Read skips it and returns a [*skippedError]; the next Read
	// returns the following message.
	Read() (message []byte, binary bool, err error)

	// Whole reports whether the next Read returns a message without waiting. It may
	// return false even so.
	Whole() bool

	// Write writes a message, and does not keep it.
	Write(message []byte, binary bool) error

	// Close sends a close message if the transport has one, and ends the connection.
	// Close, Read and Write then return within seconds. Close may be called more than
	// once.
	Close(reason string)
}

// A roomFunc waits until a message of the given size, more than [routing.Reserved], may
// be read. A nil roomFunc never waits.
type roomFunc func(bytes int) error

func (f roomFunc) wait(bytes int) error {
	if f == nil {
		return nil
	}
	return f(bytes)
}

// dial connects to the host. If the host accepts the connection, dial waits for the
// handshake until ctx ends.
func (u Upstream) dial(ctx context.Context, maxFrame int) (hostSocket, error) {
	if len(u.Command) > 0 {
		return startCommand(u.Command, u.caller.environment(), u.Stderr, maxFrame, u.caller.roomFor())
	}
	address, network, path, err := u.endpoint()
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	var connected atomic.Bool
	// The transport uses no proxy: proxies are for remote addresses.
	transport := &http.Transport{DisableKeepAlives: true}
	transport.DialContext = func(ctx context.Context, _, at string) (_ net.Conn, err error) {
		if u.Local != nil {
			conn, err = u.Local.connect(ctx)
			connected.Store(err == nil)
			if err == nil && u.accepted != nil {
				u.accepted()
			}
			return conn, err
		}
		if network == "unix" {
			at = path
		}
		conn, err = u.connect(ctx, network, at)
		connected.Store(err == nil)
		return conn, err
	}
	client := &http.Client{
		Transport: transport,
		// No redirect may carry the token to a different host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	stream, response, err := handshake(ctx, address, u.caller.header(), client)
	if err != nil {
		return nil, u.dialError(connected.Load(), response, err)
	}
	return newWebSocket(conn, stream, strings.HasPrefix(address, "wss:"), maxFrame, u.caller.roomFor()), nil
}

// fullEvery is the pause between attempts while the backlog of a Unix socket is full. A
// TCP connection would wait by itself.
const fullEvery = 100 * time.Millisecond

// connect opens the connection that carries the WebSocket.
func (u Upstream) connect(ctx context.Context, network, at string) (net.Conn, error) {
	d := net.Dialer{Timeout: u.unacked}
	for notified := false; ; {
		conn, err := d.DialContext(ctx, network, at)
		full := network == "unix" && errors.Is(err, syscall.EAGAIN)
		if (err == nil || full) && !notified && u.accepted != nil {
			notified = true
			u.accepted()
		}
		if tcp, ok := conn.(*net.TCPConn); ok && u.unacked > 0 {
			limitUnacked(tcp, u.unacked)
		}
		if !full {
			return conn, err
		}
		if !clock.Sleep(ctx, fullEvery) {
			return nil, fmt.Errorf("upstream %s %w", u, errHangs)
		}
	}
}

// probeEvery enables keep-alive probes, which detect that the other machine is
// unreachable while no data is in flight.
func probeEvery(conn *net.TCPConn, limit time.Duration) {
	third := max(limit/3, time.Second) // the shortest interval of all systems
	// This fails if the connection is closed.
	_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: third, Interval: third, Count: 2})
}

// endpoint returns the URL to dial, its network, and the path of a Unix socket.
func (u Upstream) endpoint() (address, network, path string, err error) {
	if u.Local != nil {
		return "ws://localhost/", "local", "", nil
	}
	u, token, err := u.locked()
	if err != nil {
		return "", "", "", err
	}
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return "", "", "", errMalformed
	}
	network = "tcp"
	if parsed.Scheme == "unix" {
		network, path = "unix", parsed.Path
		parsed = &url.URL{Scheme: "ws", Host: "localhost", Path: "/"}
	}
	if u.TokenFile != "" {
		if token, err = u.token(); err != nil {
			return "", "", "", err
		}
	}
	if token != "" {
		query := parsed.Query()
		query.Set("tkn", token)
		parsed.RawQuery = query.Encode()
	}
	return parsed.String(), network, path, nil
}

// dialError describes a failed dial without the URL, in which there may be a token.
func (u Upstream) dialError(connected bool, response *http.Response, err error) error {
	if response != nil && response.StatusCode != http.StatusSwitchingProtocols {
		hint := "is this an AHP host's port?"
		if response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden {
			hint = "does the host want a token (--upstream-token-file)?"
		}
		return &httpError{response.StatusCode, fmt.Errorf("upstream %s answers HTTP %d instead of a WebSocket: %s", u, response.StatusCode, hint)}
	}
	if connected && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("upstream %s %w", u, errHangs)
	}
	if inURL, ok := errors.AsType[*url.Error](err); ok {
		err = inURL.Err
	}
	if connected {
		err = handshakeError{err}
	}
	return fmt.Errorf("upstream %s: %w", u, err)
}

// errTooBig reports a host message above the limit.
var errTooBig = errors.New("message too big")

// A skippedError is a request or response above the limit, reduced to its envelope by
// [ahp.Skimmer].
type skippedError struct {
	env         ahp.Envelope
	size, limit int
}

// Error includes the length.
func (e *skippedError) Error() string {
	return fmt.Sprintf("%v: %v of %d bytes; want at most %d", errTooBig, e.env.Kind, e.size, e.limit)
}

func (e *skippedError) Unwrap() error { return errTooBig }

func isSkipped(err error) bool {
	var skip *skippedError
	return errors.As(err, &skip)
}

// skipped returns the error for a skimmed message.
func skipped(skim *ahp.Skimmer, limit int) error {
	env, err := skim.Envelope()
	if err != nil {
		return fmt.Errorf("%w: more than %d bytes, and not readable: %w", errTooBig, limit, err)
	}
	if env.Kind == ahp.Notification {
		return fmt.Errorf("%w: more than %d bytes: a notification of %d", errTooBig, limit, skim.Size())
	}
	return &skippedError{env, skim.Size(), limit}
}

// tooBig reports whether reading failed because of the limit.
func tooBig(err error) bool { return errors.Is(err, errTooBig) }
