package connect

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/resume"
	"ahprelay/internal/sealed"
)

// An upstream is an open connection to a host. It can move to a different relay, see
// move.go.
type upstream struct {
	relay *Relay
	host  string
	level auth.Access

	seal    *sealedEnd // nil: not sealed
	hostKey sealed.Key // key of a sealed host

	life context.Context // ends with end
	quit context.CancelFunc

	mu      sync.Mutex // guards the fields below; only the reader changes leg
	leg                // the current leg
	moving  bool
	over    bool          // the upstream cannot move any more
	changed chan struct{} // closed when a field above changes
}

// A leg is one WebSocket to a relay.
type leg struct {
	ws     *websocket.Conn
	token  string
	ticket string // ticket for a move; "": this leg cannot move

	stream *resume.Stream // stream below ws; nil: the connection cannot resume
	stop   func()         // ends the stream and waits for its end
}

// plainFor is how long a relay which cannot resume connections is remembered.
const plainFor = 10 * time.Minute

var errPlain = errors.New("this relay does not resume connections")

// Dial opens a connection to a host. If the relay supports it, the connection resumes
// after interruptions. If this machine is paired with the host, the connection is sealed.
func (r *Relay) Dial(ctx context.Context, host string, level auth.Access) (*upstream, error) {
	paired, err := r.paired(host)
	if err != nil {
		return nil, err
	}
	up, err := r.open(ctx, host, level, paired != nil)
	if err != nil || paired == nil {
		return up, err
	}
	ask := paired.ask()
	ask.level = cmp.Or(level, auth.AccessWrite)
	err = up.openSealed(ctx, ask)
	if err == nil {
		err = up.seal.share(ctx)
	}
	if err != nil {
		up.end()
		return nil, err
	}
	up.seal.up.Store(up) // from now on, the connection can move when the relay stops
	return up, nil
}

func (r *Relay) paired(host string) (*Pairing, error) {
	if r.pairing == nil {
		return nil, nil
	}
	paired, err := r.pairing(host)
	if err != nil {
		return nil, &Refusal{ahp.CloseForbidden, err.Error()}
	}
	return paired, nil
}

// claims reports whether a host counts as one of this relay: the relay has listed it, or this machine knows
// it there as sealed, with or without a key.
func (r *Relay) claims(host string, listed []Host) bool {
	paired, refused := r.paired(host)
	return paired != nil || refused != nil || slices.ContainsFunc(listed, func(h Host) bool { return h.Name == host && h.Relay == r.Name })
}

// openSealed does the sealed handshake on a new connection.
func (u *upstream) openSealed(ctx context.Context, ask sealAsk) (err error) {
	ask.away = u.away
	u.seal, u.hostKey, err = openSealed(ctx, u.ws, ask)
	return err
}

func (r *Relay) open(ctx context.Context, host string, level auth.Access, seals bool) (*upstream, error) {
	up := &upstream{relay: r, host: host, level: level, changed: make(chan struct{})}
	up.life, up.quit = context.WithCancel(context.WithoutCancel(ctx))
	first, err := r.dialWS(ctx, host, level, seals, "")
	if err != nil {
		up.quit()
		return nil, err
	}
	up.leg = *first
	return up, nil
}

// dialWS opens a WebSocket to a host. With the ticket of a previous leg, it continues that
// leg's connection.
func (r *Relay) dialWS(ctx context.Context, host string, level auth.Access, seals bool, previous string) (*leg, error) {
	token, _, err := r.Token(ctx, host, level)
	if err != nil {
		return nil, err
	}
	up := &leg{token: token, stop: func() {}}
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	client := &http.Client{}
	address := "ws" + strings.TrimPrefix(r.URL, "http") + "/ahp/" + url.PathEscape(host)
	switch err := up.openStream(ctx, r, host, level); {
	case errors.Is(err, errPlain):
	case err != nil:
		return nil, err
	default:
		// TLS is used by the carriers below the stream.
		address = "ws" + strings.TrimPrefix(strings.TrimPrefix(r.URL, "https"), "http") + "/ahp/" + url.PathEscape(host)
		client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return up.stream, nil }}
	}
	options := &websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}, CompressionMode: websocket.CompressionNoContextTakeover}
	up.ticket = rand.Text()
	options.HTTPHeader.Set(resume.MoveHeader, up.ticket)
	if previous != "" {
		options.HTTPHeader.Set(resume.MovedHeader, previous)
	}
	if seals {
		options.Subprotocols, options.CompressionMode = []string{sealed.Subprotocol}, websocket.CompressionDisabled
	}
	ws, response, err := websocket.Dial(ctx, address, options)
	if err != nil {
		up.stop()
		return nil, r.dialFailed(response, err)
	}
	ws.SetReadLimit(maxMessage)
	up.ws = ws
	switch {
	case seals && ws.Subprotocol() != sealed.Subprotocol:
		up.end()
		return nil, &Refusal{ahp.CloseForbidden, fmt.Sprintf("%s is sealed, and %s opens it unsealed only: this machine does not connect. Update the relay, or ask its operator", host, r.Name)}
	case previous != "" && response.Header.Get(resume.MovedHeader) == "":
		up.end()
		return nil, errLostMove
	}
	return up, nil
}

func (u *upstream) send(message []byte) error {
	if u.seal != nil {
		return u.seal.send(context.Background(), sealed.Message, message)
	}
	return u.write(context.Background(), websocket.MessageText, message)
}

// write writes a message to the current leg, or, if the connection moves meanwhile, to the
// next.
func (u *upstream) write(ctx context.Context, kind websocket.MessageType, message []byte) error {
	for {
		ws, err := u.present()
		if err != nil {
			return err
		}
		if err := ws.Write(ctx, kind, message); err == nil || !u.movesFrom(ws) {
			return err
		} // the relay has not received it, because it was sent after the relay's close frame
	}
}

// tell sends a message to the relay itself.
func (u *upstream) tell(ctx context.Context, message []byte) error {
	ws, err := u.present()
	if err != nil {
		return err
	}
	return ws.Write(ctx, websocket.MessageText, message)
}

// receive returns the next message from the host or from the relay, valid until the next
// call. For a sealed host, messages from the relay never count as the host's.
func (u *upstream) receive(buf *bytes.Buffer) (message []byte, ofRelay bool, err error) {
	if u.seal == nil {
		for {
			message, err = readMessage(u.ws, buf)
			if err == nil {
				return message, false, nil
			}
			if err = u.move(err); err != nil {
				return nil, false, err
			}
		}
	}
	u.seal.unread.Store(false)
	defer u.seal.unread.Store(true)
	if message = u.seal.next(); message != nil {
		return message, false, nil
	}
	for {
		message, err := readMessage(u.ws, buf)
		if err == nil {
			return message, true, nil
		}
		if !errors.Is(err, errBinary) {
			if err = u.move(err); err != nil {
				return nil, false, relaysWord(err)
			}
			continue
		}
		message, err = u.seal.read(buf.Bytes())
		if closed := (*Closed)(nil); err != nil && !errors.As(err, &closed) {
			err = &Closed{ahp.CloseResync, "resync: " + err.Error()}
		}
		if err != nil || message != nil {
			return message, false, err
		}
	}
}

// relaysWord converts the error if a relay has closed a sealed connection. The host itself
// has not closed it, so messages may be missing.
func relaysWord(err error) error {
	var closed *Closed
	if !errors.As(err, &closed) || closed.Code == closeLost {
		return err
	}
	if closed.Code.Reason() == "" {
		return &Closed{ahp.CloseResync, "resync: the relay ended the connection"}
	}
	return &Closed{closed.Code, "the relay: " + closed.Reason}
}

// close closes the connection, except during a move.
func (u *upstream) close(code ahp.CloseCode, reason string) {
	ws, moving := u.current()
	if moving {
		return // no relay is connected
	}
	if u.seal != nil {
		timer := time.AfterFunc(closeTime, func() { // also ends a send which holds the lock
			u.finish()
			_ = ws.CloseNow()
		})
		_ = u.seal.send(context.Background(), sealed.Close, sealed.AppendClose(code, reason)) // the relay may be gone
		timer.Stop()
		reason = ""
	}
	closeWS(ws, code, reason)
}

func (u *upstream) currentToken() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.token
}

func (u *leg) openStream(ctx context.Context, r *Relay, host string, level auth.Access) error {
	r.mu.Lock()
	plain := r.plain
	r.mu.Unlock()
	if time.Now().Before(plain) {
		return errPlain
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, cancel) // only while the stream is being opened
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

func (r *Relay) dialFailed(response *http.Response, err error) error {
	if response == nil || response.StatusCode == http.StatusSwitchingProtocols {
		return r.explain(unwrapURL(r.URL, err))
	}
	var text []byte
	if response.Body != nil {
		text, _ = io.ReadAll(io.LimitReader(response.Body, 1024)) // the beginning suffices
	}
	return r.refusedBy(response.StatusCode, text)
}

// away reports whether the relay is unreachable.
func (u *upstream) away() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.moving || u.stream != nil && u.stream.Away()
}

// why returns the reason behind a failed read.
func (u *upstream) why(err error) error {
	if closed, ok := errors.AsType[*Closed](err); ok && closed.Code != closeLost || u.stream == nil {
		return err
	}
	ended := u.stream.Err()
	if refusal := (*Refusal)(nil); errors.As(ended, &refusal) {
		return refusal
	}
	return &Closed{ahp.CloseResync, "resync: the relay was away for too long, or has dropped the stream"}
}

// end releases all resources of the connection. No other method may be called afterwards.
func (u *upstream) end() {
	u.quit()
	last := u.finish()
	if u.seal != nil {
		u.seal.stop()
	}
	last.end()
}

// end releases all resources of the leg.
func (u *leg) end() {
	_ = u.ws.CloseNow()
	u.stop()
}
