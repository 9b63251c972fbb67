package refclient

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// A link sends and receives whole messages.
type link interface {
	Send(msg []byte) error
	Recv() ([]byte, error)

	// Close ends the connection in order. Recv then returns an error.
	Close() error

	// Abort ends the connection at once, as if the network were gone.
	Abort() error
}

// closeTimeout limits the wait for the host's answer to a close frame.
const closeTimeout = 2 * time.Second

type wsLink struct{ ws *websocket.Conn }

func dialWebSocket(ctx context.Context, rawURL string, opts Options) (*wsLink, error) {
	header := opts.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	var subprotocols []string
	if opts.Token != "" {
		query := u.Query()
		switch opts.TokenIn {
		case InHeader:
			header.Set("Authorization", "Bearer "+opts.Token)
		case InAccessToken:
			query.Set("access_token", opts.Token)
		case InTkn:
			query.Set("tkn", opts.Token)
		case InSubprotocol:
			subprotocols = []string{"ahp", "bearer." + opts.Token}
		}
		u.RawQuery = query.Encode()
	}
	ws, resp, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{
		HTTPClient:   opts.HTTPClient,
		HTTPHeader:   header,
		Subprotocols: subprotocols,
	})
	if err != nil {
		return nil, refused(resp, err)
	}
	ws.SetReadLimit(opts.MaxFrame)
	return &wsLink{ws}, nil
}

// refused returns the error for a failed handshake, with the response if there was one.
func refused(resp *http.Response, err error) error {
	if resp == nil {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // an incomplete body is enough
	return &HandshakeError{Status: resp.StatusCode, Header: resp.Header, Body: body, err: err}
}

func (l *wsLink) Send(msg []byte) error {
	return l.ws.Write(context.Background(), websocket.MessageText, msg)
}

func (l *wsLink) SendBinary(msg []byte) error {
	return l.ws.Write(context.Background(), websocket.MessageBinary, msg)
}

func (l *wsLink) Recv() ([]byte, error) {
	_, msg, err := l.ws.Read(context.Background())
	return msg, err
}

func (l *wsLink) Close() error {
	timeout := time.AfterFunc(closeTimeout, func() { l.ws.CloseNow() })
	defer timeout.Stop()
	return l.ws.Close(websocket.StatusNormalClosure, "")
}

func (l *wsLink) Abort() error { return l.ws.CloseNow() }

// A lineLink sends and receives a message in each line.
type lineLink struct {
	r  io.ReadCloser
	in *bufio.Reader

	mu sync.Mutex // held during a Send
	w  io.WriteCloser
}

func (l *lineLink) Send(msg []byte) error {
	line := append(append(make([]byte, 0, len(msg)+1), msg...), '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(line)
	return err
}

func (l *lineLink) Recv() ([]byte, error) {
	line, err := l.in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	return line[:len(line)-1], nil
}

func (l *lineLink) Close() error { return l.Abort() }

func (l *lineLink) Abort() error { return errors.Join(l.w.Close(), l.r.Close()) }
