package hostagent

import (
	"bufio"
	"bytes"
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
	"sync"
	"time"

	"github.com/coder/websocket"
)

// An Upstream says where the AHP host is. Exactly one of URL and Command is
// set.
type Upstream struct {
	URL     string   // ws://…, wss://…, or unix:/path for a WebSocket over a Unix socket
	Command []string // a program that speaks AHP on its standard input and output, one message a line

	// TokenFile holds the connection token that the host wants (?tkn=), if it
	// wants one. It is read anew for each connection.
	TokenFile string

	// Stderr is where a Command's standard error goes. Default: nowhere.
	Stderr io.Writer
}

// String returns the upstream as messages name it, without secrets.
func (u Upstream) String() string {
	if len(u.Command) > 0 {
		return strings.Join(u.Command, " ")
	}
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return "(malformed URL)"
	}
	parsed.RawQuery, parsed.User = "", nil
	return parsed.String()
}

// Check reports what is wrong with an upstream that can be seen without
// connecting to it.
func (u Upstream) Check() error {
	if (u.URL == "") == (len(u.Command) == 0) {
		return errors.New("upstream: give either a URL (ws://, wss://, unix:) or a command behind --")
	}
	if u.TokenFile != "" {
		if _, err := u.token(); err != nil {
			return err
		}
	}
	if len(u.Command) > 0 {
		if u.TokenFile != "" {
			return errors.New("upstream: a token file is for URLs; a command gets its secrets from its environment")
		}
		if _, err := exec.LookPath(u.Command[0]); err != nil {
			return fmt.Errorf("upstream: command %q: %w", u.Command[0], err)
		}
		return nil
	}
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return errors.New("upstream: the URL is malformed")
	}
	switch {
	case parsed.Scheme == "unix" && parsed.Path == "":
		return fmt.Errorf("upstream %q: want unix:/path/to/socket", u.URL)
	case parsed.Scheme == "unix":
		return nil
	case parsed.Scheme != "ws" && parsed.Scheme != "wss":
		return fmt.Errorf("upstream %q: scheme is %q; want ws://, wss:// or unix:/path", u, parsed.Scheme)
	case parsed.Host == "":
		return fmt.Errorf("upstream %q: no host in the URL", u)
	}
	return nil
}

func (u Upstream) token() (string, error) {
	b, err := os.ReadFile(u.TokenFile)
	if err != nil {
		return "", fmt.Errorf("upstream token file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("upstream token file %s: want one token on one line", u.TokenFile)
	}
	return token, nil
}

// A hostSocket is a connection to the AHP host that carries whole messages.
// One goroutine may read while another writes. Close ends both.
type hostSocket interface {
	// Read returns the next message, which the caller owns.
	Read() (message []byte, binary bool, err error)
	Write(message []byte, binary bool) error
	// Close says goodbye, if there is a way to, and ends the connection.
	Close(reason string)
}

// dialTimeout bounds an attempt to connect to the host.
const dialTimeout = 10 * time.Second

// dial connects to the host.
func (u Upstream) dial(ctx context.Context, maxFrame int) (hostSocket, error) {
	if len(u.Command) > 0 {
		return startCommand(u.Command, u.Stderr, maxFrame)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	address, client, err := u.endpoint()
	if err != nil {
		return nil, err
	}
	ws, response, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPClient:      client,
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, u.dialError(response, err)
	}
	ws.SetReadLimit(int64(maxFrame))
	return &webSocket{ws}, nil
}

// endpoint returns the URL to dial and the client to dial it with. Proxies are
// for the outside, and not asked.
func (u Upstream) endpoint() (string, *http.Client, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	parsed, err := url.Parse(u.URL)
	if err != nil {
		return "", nil, errors.New("upstream: the URL is malformed")
	}
	if parsed.Scheme == "unix" {
		path := parsed.Path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		parsed = &url.URL{Scheme: "ws", Host: "localhost", Path: "/"}
	}
	if u.TokenFile != "" {
		token, err := u.token()
		if err != nil {
			return "", nil, err
		}
		query := parsed.Query()
		query.Set("tkn", token)
		parsed.RawQuery = query.Encode()
	}
	return parsed.String(), &http.Client{Transport: transport}, nil
}

// dialError says what went wrong without the URL, in which there may be a
// token.
func (u Upstream) dialError(response *http.Response, err error) error {
	if response != nil && response.StatusCode != http.StatusSwitchingProtocols {
		hint := "is this an AHP host's port?"
		if response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden {
			hint = "does the host want a token (--upstream-token-file)?"
		}
		return fmt.Errorf("upstream %s answers HTTP %d instead of a WebSocket: %s", u, response.StatusCode, hint)
	}
	var inURL *url.Error
	if errors.As(err, &inURL) {
		err = inURL.Err
	}
	return fmt.Errorf("upstream %s: %w", u, err)
}

// webSocket is a hostSocket over WebSocket.
type webSocket struct{ ws *websocket.Conn }

func (s *webSocket) Read() ([]byte, bool, error) {
	kind, message, err := s.ws.Read(context.Background())
	return message, kind == websocket.MessageBinary, err
}

func (s *webSocket) Write(message []byte, binary bool) error {
	kind := websocket.MessageText
	if binary {
		kind = websocket.MessageBinary
	}
	return s.ws.Write(context.Background(), kind, message)
}

func (s *webSocket) Close(reason string) {
	_ = s.ws.Close(websocket.StatusNormalClosure, reason) // the host may be gone
}

// commandSocket is a hostSocket over the standard input and output of a
// program.
type commandSocket struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	limit int
	end   sync.Once
}

// exitTime is how long a program may go on after its standard input has ended.
const exitTime = 3 * time.Second

func startCommand(command []string, stderr io.Writer, limit int) (hostSocket, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("upstream %q: %w", command[0], err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("upstream %q: %w", command[0], err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	return &commandSocket{cmd: cmd, in: in, out: bufio.NewReader(out), limit: limit}, nil
}

func (s *commandSocket) Read() ([]byte, bool, error) {
	var line []byte
	for {
		piece, err := s.out.ReadSlice('\n')
		line = append(line, piece...)
		if len(line) > s.limit+2 {
			return nil, false, fmt.Errorf("%w: a line of more than %d bytes", errTooBig, s.limit)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, false, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			return line, false, nil
		}
	}
}

func (s *commandSocket) Write(message []byte, _ bool) error {
	// A line break inside JSON is white space.
	line := append(bytes.ReplaceAll(message, []byte{'\n'}, []byte{' '}), '\n')
	_, err := s.in.Write(line)
	return err
}

// Close ends the program's standard input, and the program if that does not
// end it. It returns when the program is gone.
func (s *commandSocket) Close(string) {
	s.end.Do(func() {
		_ = s.in.Close()
		kill := time.AfterFunc(exitTime, func() { _ = s.cmd.Process.Kill() })
		defer kill.Stop()
		_ = s.cmd.Wait()
	})
}

// errTooBig reports a message of the host that is over the limit.
var errTooBig = errors.New("message too big")

// tooBig reports whether reading failed because of the limit.
func tooBig(err error) bool {
	return errors.Is(err, errTooBig) || errors.Is(err, websocket.ErrMessageTooBig)
}
