package connect

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/resume"
)

// An upstream is an open connection to a host.
type upstream struct {
	ws    *websocket.Conn
	token string
	renew time.Time // the token should be renewed then

	stream *resume.Conn // below ws; nil: the connection does not resume
	stop   func()       // ends the stream, and waits for it
}

// plainFor is how long a relay that does not resume connections is not asked again.
const plainFor = 10 * time.Minute

// errPlain reports a relay that does not resume connections.
var errPlain = errors.New("this relay does not resume connections")

// Dial opens a connection to a host. It survives interruptions if the relay permits.
func (r *Relay) Dial(ctx context.Context, host string, level auth.Access) (*upstream, error) {
	token, renew, err := r.Token(ctx, host, level)
	if err != nil {
		return nil, err
	}
	up := &upstream{token: token, renew: renew, stop: func() {}}
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	client := &http.Client{}
	address := "ws" + strings.TrimPrefix(r.URL, "http") + "/ahp/" + url.PathEscape(host)
	switch err := up.openStream(ctx, r, host, level); {
	case errors.Is(err, errPlain):
	case err != nil:
		return nil, err
	default:
		// TLS is below the stream.
		address = "ws" + strings.TrimPrefix(strings.TrimPrefix(r.URL, "https"), "http") + "/ahp/" + url.PathEscape(host)
		client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return up.stream, nil }}
	}
	ws, response, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}, CompressionMode: websocket.CompressionNoContextTakeover,
	})
	if err != nil {
		up.stop()
		return nil, r.dialFailed(response, err)
	}
	ws.SetReadLimit(maxMessage)
	up.ws = ws
	return up, nil
}

// openStream opens the stream below the connection.
func (u *upstream) openStream(ctx context.Context, r *Relay, host string, level auth.Access) error {
	r.mu.Lock()
	plain := r.plain
	r.mu.Unlock()
	if time.Now().Before(plain) {
		return errPlain
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, cancel) // while it is being opened
	stream, over, err := resume.Dial(life, func(ctx context.Context) (resume.Carrier, error) { return r.dialCarrier(ctx, life, host, level) })
	if err != nil {
		unlink()
		cancel()
		return err
	}
	unlink()
	u.stream, u.stop = stream, func() {
		_ = stream.Close()
		stream.AwaitEnd(closeTime)
		cancel()
		<-over
	}
	return nil
}

// dialCarrier opens a network connection for a stream.
func (r *Relay) dialCarrier(ctx, life context.Context, host string, level auth.Access) (resume.Carrier, error) {
	token, _, err := r.Token(ctx, host, level)
	if err == nil {
		var carrier resume.Carrier
		if carrier, err = r.carrier(ctx, life, token); err == nil {
			return carrier, nil
		}
	}
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		return nil, &resume.Refused{Err: err}
	}
	return nil, err
}

func (r *Relay) carrier(ctx, life context.Context, token string) (resume.Carrier, error) {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	ws, response, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(r.URL, "http")+resume.Path, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}, Subprotocols: []string{resume.Subprotocol},
	})
	switch {
	case err == nil && ws.Subprotocol() == resume.Subprotocol:
		return resume.NewWebSocket(life, ws), nil
	case err == nil:
		_ = ws.CloseNow()
	case response == nil || response.StatusCode != http.StatusNotFound && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusMethodNotAllowed:
		return nil, r.dialFailed(response, err)
	}
	r.mu.Lock()
	r.plain = time.Now().Add(plainFor)
	r.mu.Unlock()
	return nil, errPlain
}

// dialFailed explains a failed handshake.
func (r *Relay) dialFailed(response *http.Response, err error) error {
	if response == nil || response.StatusCode == http.StatusSwitchingProtocols {
		return r.explain(unwrapURL(r.URL, err))
	}
	var text []byte
	if response.Body != nil {
		text, _ = io.ReadAll(io.LimitReader(response.Body, 1024)) // a part is enough
	}
	return r.refusedBy(response.StatusCode, text)
}

// away reports whether the relay is unreachable at the moment.
func (u *upstream) away() bool { return u.stream != nil && u.stream.Away() }

// why returns the reason for a failed read.
func (u *upstream) why(err error) error {
	var closed *Closed
	if errors.As(err, &closed) && closed.Code != closeLost || u.stream == nil {
		return err
	}
	ended := u.stream.Err()
	if refusal := (*Refusal)(nil); errors.As(ended, &refusal) {
		return refusal
	}
	return &Closed{ahp.CloseResync, "resync: the relay was away for too long, or has dropped the stream"}
}

// end releases everything that the connection uses.
func (u *upstream) end() {
	_ = u.ws.CloseNow()
	u.stop()
}
