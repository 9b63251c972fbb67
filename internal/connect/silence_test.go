package connect

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"ahprelay/auth"
	"ahprelay/internal/sealed"
)

// A memoryRelay is a relay in memory. It implements [http.RoundTripper].
type memoryRelay struct {
	serve func(*websocket.Conn) error
	ws    *websocket.Conn
	done  chan error // has the result of serve
}

// A hijacked is the server's end of a connection in memory.
type hijacked struct {
	http.ResponseWriter
	header http.Header
	conn   net.Conn
}

func (w *hijacked) Header() http.Header { return w.header }
func (w *hijacked) WriteHeader(int)     {}
func (w *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// RoundTrip implements [http.RoundTripper].
func (p *memoryRelay) RoundTrip(r *http.Request) (*http.Response, error) {
	client, server := net.Pipe()
	w := &hijacked{header: http.Header{}, conn: server}
	var err error
	if p.ws, err = websocket.Accept(w, r, nil); err != nil {
		return nil, err
	}
	go func() { p.done <- p.serve(p.ws) }()
	return &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: w.header, Body: client, Request: r}, nil
}

// dial returns a client's WebSocket to the relay. Both ends are closed when the test ends.
func (p *memoryRelay) dial(t *testing.T) *websocket.Conn {
	t.Helper()
	p.done = make(chan error, 1)
	ws, _, err := websocket.Dial(t.Context(), "ws://relay.invalid/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: p}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ws.CloseNow(), p.ws.CloseNow() })
	return ws
}

// welcome does the handshake of a sealed host and admits the client.
func welcome(secret sealed.Secret, ws *websocket.Conn) (*sealed.Session, error) {
	ctx := context.Background()
	r := sealed.NewResponder(sealed.ResponderConfig{Host: "host", Secret: secret, Limit: 1 << 20})
	for {
		_, frame, err := ws.Read(ctx)
		if err != nil {
			return nil, err
		}
		answer, arrival, err := r.Read(frame)
		if err != nil {
			return nil, err
		}
		if arrival == nil {
			if err := ws.Write(ctx, websocket.MessageBinary, answer); err != nil {
				return nil, err
			}
			continue
		}
		body, err := sealed.Admission{Subject: "ada", Level: auth.AccessWrite, End: time.Now().Add(time.Hour).Unix()}.Encode()
		if err != nil {
			return nil, err
		}
		frames, err := arrival.Session.Seal(sealed.Welcome, body)
		if err != nil {
			return nil, err
		}
		return arrival.Session, ws.Write(ctx, websocket.MessageBinary, frames[0])
	}
}

// dialSealed opens a sealed connection. serve is the relay with the host, after the welcome.
func (p *memoryRelay) dialSealed(t *testing.T, serve func(*sealed.Session, *websocket.Conn) error) *sealedEnd {
	t.Helper()
	secret, err := sealed.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	p.serve = func(ws *websocket.Conn) error {
		session, err := welcome(secret, ws)
		if err != nil {
			return err
		}
		return serve(session, ws)
	}
	ws := p.dial(t)
	device, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	key := secret.Public()
	e, _, err := openSealed(t.Context(), ws, sealAsk{host: "host", key: &key, device: device, away: func() bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestRelayThatTakesNothingIsNoticed opens a sealed connection through a relay that then neither takes
// nor delivers anything, while the client sends only heartbeats, or also a message. The connection must end
// after the longest silence: without it, the client would wait forever.
func TestRelayThatTakesNothingIsNoticed(t *testing.T) {
	for _, says := range []string{"", "a message"} {
		if !t.Run("client says "+says, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { hearsNothing(t, []byte(says)) })
		}) {
			return // a message would wait for the heartbeat without an end
		}
	}
}

func hearsNothing(t *testing.T, says []byte) {
	relay := &memoryRelay{}
	e := relay.dialSealed(t, func(*sealed.Session, *websocket.Conn) error { return nil })
	if err := <-relay.done; err != nil {
		t.Fatal(err)
	}
	if len(says) > 0 {
		go func() { _ = e.send(context.Background(), sealed.Message, says) }() // ends with the connection
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	_, err := readBinary(ctx, e.ws)
	if took := time.Since(began); err == nil || took > sealSilence+2*sealTick {
		t.Errorf("the client's connection ends after %v, %v; want at most %v", took, err, sealSilence+2*sealTick)
	}
	_, _ = e.ws.CloseNow(), relay.ws.CloseNow() // if the test fails, the heartbeat still waits
	e.stop()
}

// TestClientThatReadsNothingStaysConnected has a local client take nothing for two minutes, while the host
// sends a message every 15 s. The client must then get all messages. When the relay delivers nothing more,
// the connection must end.
func TestClientThatReadsNothingStaysConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 10
		relay := &memoryRelay{}
		e := relay.dialSealed(t, func(session *sealed.Session, ws *websocket.Conn) error {
			go func() { // takes heartbeats, and ends with the connection
				for {
					if _, err := readBinary(context.Background(), ws); err != nil {
						return
					}
				}
			}()
			for i := range messages {
				frames, err := session.Seal(sealed.Message, fmt.Append(nil, i))
				if err != nil {
					return err
				}
				if err := ws.Write(context.Background(), websocket.MessageBinary, frames[0]); err != nil {
					return err
				}
				time.Sleep(sealed.Beat)
			}
			return nil
		})
		defer e.stop()
		defer func() { _, _ = e.ws.CloseNow(), relay.ws.CloseNow() }()
		up := &upstream{seal: e, life: t.Context(), changed: make(chan struct{}), leg: leg{ws: e.ws}}
		var buf bytes.Buffer
		for i := range messages {
			message, _, err := up.receive(&buf)
			if want := fmt.Sprint(i); err != nil || string(message) != want {
				t.Fatalf("receive = %q, %v; want %q", message, err, want)
			}
			if i == 1 {
				time.Sleep(2 * time.Minute) // the local client takes the message so slowly
			}
		}
		began := time.Now()
		defer time.AfterFunc(10*time.Minute, func() { _ = e.ws.CloseNow() }).Stop() // so that a failing test ends
		if _, _, err := up.receive(&buf); err == nil || time.Since(began) > sealSilence+2*sealTick {
			t.Errorf("after a silence of %v, receive returns %v; want an error within %v", time.Since(began), err, sealSilence+2*sealTick)
		}
	})
}

// newTokens are a new token at each request, valid for an hour.
type newTokens struct {
	absentTokens
	made int
}

func (n *newTokens) token(context.Context, string, auth.Access, string) (string, time.Time, error) {
	n.made++
	return fmt.Sprint("token ", n.made), time.Now().Add(time.Hour), nil
}

// TestTokenIsRenewedAfterSleep has a machine wake up: the time of the token's renewal has come by the system's
// clock, but the machine's timers stood still. The relay must get the new token within a minute, because
// it would otherwise end the connection when the first token expires.
func TestTokenIsRenewedAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		server := &memoryRelay{serve: func(ws *websocket.Conn) error {
			for {
				_, message, err := ws.Read(context.Background())
				if err != nil {
					return err
				}
				got = append(got, string(message))
			}
		}}
		relay := NewRelay("http://relay.invalid", &newTokens{})
		token, _, err := relay.Token(t.Context(), "host", "")
		if err != nil {
			t.Fatal(err)
		}
		p := &pipe{relay: relay, host: "host", mark: "mark", up: &upstream{relay: relay, host: "host", changed: make(chan struct{}), leg: leg{ws: server.dial(t), token: token, stop: func() {}}}}
		ctx, cancel := context.WithCancel(t.Context())
		var renewing sync.WaitGroup
		renewing.Go(func() { p.renewTokens(ctx) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(got) > 0 {
			t.Errorf("the relay got %q; want nothing while the token is fresh", got)
		}
		relay.forget() // as after the token's time
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(got) != 1 || !strings.Contains(got[0], `"relay/refreshToken"`) || !strings.Contains(got[0], `"token 2"`) {
			t.Errorf("after the sleep, the relay got %q; want the second token once", got)
		}
		cancel()
		renewing.Wait()
		_ = p.up.ws.CloseNow()
		<-server.done
	})
}
