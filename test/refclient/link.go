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

// A link carries whole messages.
type link interface {
	Send(msg []byte) error
	Recv() ([]byte, error)

	// Close ends the connection in good order, and with it Recv.
	Close() error

	// Abort ends it at once, as a lost network does.
	Abort() error
}

// closeTimeout is how long the host gets to answer a close frame.
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

// refused keeps the answer to a handshake that failed.
func refused(resp *http.Response, err error) error {
	if resp == nil {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // what there is
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

// A lineLink carries one message a line.
type lineLink struct {
	r  io.ReadCloser
	in *bufio.Reader

	mu sync.Mutex // one Send at a time
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
