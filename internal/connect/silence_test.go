package connect

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"ahprelay/auth"
	"ahprelay/internal/sealed"
)

// A sealedPeer is a relay with a sealed host behind it, in memory. It implements [http.RoundTripper].
type sealedPeer struct {
	secret sealed.Secret
	ws     *websocket.Conn
	done   chan error // has the handshake's result
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
func (p *sealedPeer) RoundTrip(r *http.Request) (*http.Response, error) {
	client, server := net.Pipe()
	w := &hijacked{header: http.Header{}, conn: server}
	var err error
	if p.ws, err = websocket.Accept(w, r, nil); err != nil {
		return nil, err
	}
	go func() { p.done <- p.welcome() }()
	return &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: w.header, Body: client, Request: r}, nil
}

// welcome does the handshake and admits the client. It then neither reads nor writes.
func (p *sealedPeer) welcome() error {
	ctx := context.Background()
	r := sealed.NewResponder(sealed.ResponderConfig{Host: "host", Secret: p.secret, Limit: 1 << 20})
	for {
		_, frame, err := p.ws.Read(ctx)
		if err != nil {
			return err
		}
		answer, arrival, err := r.Read(frame)
		if err != nil {
			return err
		}
		if arrival == nil {
			if err := p.ws.Write(ctx, websocket.MessageBinary, answer); err != nil {
				return err
			}
			continue
		}
		body, err := sealed.Admission{Subject: "ada", Level: auth.AccessWrite, End: time.Now().Add(time.Hour).Unix()}.Encode()
		if err != nil {
			return err
		}
		frames, err := arrival.Session.Seal(sealed.Welcome, body)
		if err != nil {
			return err
		}
		return p.ws.Write(ctx, websocket.MessageBinary, frames[0])
	}
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
	secret, err := sealed.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	peer := &sealedPeer{secret: secret, done: make(chan error, 1)}
	ws, _, err := websocket.Dial(t.Context(), "ws://relay.invalid/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: peer}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = ws.CloseNow(), peer.ws.CloseNow() }()
	device, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	key := secret.Public()
	e, _, err := openSealed(t.Context(), ws, sealAsk{host: "host", key: &key, device: device, away: func() bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-peer.done; err != nil {
		t.Fatal(err)
	}
	if len(says) > 0 {
		go func() { _ = e.send(context.Background(), sealed.Message, says) }() // ends with the connection
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	_, err = readBinary(ctx, ws)
	if took := time.Since(began); err == nil || took > sealSilence+2*sealTick {
		t.Errorf("the client's connection ends after %v, %v; want at most %v", took, err, sealSilence+2*sealTick)
	}
	_, _ = ws.CloseNow(), peer.ws.CloseNow() // if the test fails, the heartbeat still waits
	e.stop()
}
