package gateway

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"pgregory.net/rapid"

	"ahprelay/auth"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// The host sends the same messages to a client with compression and a client without.
// Both receive them unchanged, and the former in at most three quarters of the bytes.
func TestCompressedMessagesArriveUnchanged(t *testing.T) {
	noise := make([]byte, 600<<10)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	texts := []string{"x", strings.Repeat("y", wire.DeflateLeast), base64.StdEncoding.EncodeToString(noise), strings.Repeat("snapshots are long, and say much twice. ", 30_000), base64.StdEncoding.EncodeToString(noise[:6000])}
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		plain, packed := w.dial(w.token(nil)), w.dialPacked(w.token(func(c *auth.Client) { c.Subject = "bob" }))
		var want []string
		for n, c := range []*clientEnd{plain, packed} {
			c.request(1, "initialize")
			h := w.hostConn(n + 1)
			h.accept(1)
			for i, text := range texts {
				h.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%q}`, i+2, text))
			}
		}
		want = append(want, answerTo(1))
		for i, text := range texts {
			want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%q}`, i+2, text))
		}
		plain.wantTold(want)
		packed.wantTold(want)
		sizes := map[string]uint64{}
		for _, c := range w.server.hosts.all() {
			sizes[c.token.first.Subject] = c.sock.Conn.Written.Load()
		}
		if sizes["bob"] > sizes["ada"]*3/4 {
			t.Errorf("the client with compression got %d bytes; want at most three quarters of the other client's %d", sizes["bob"], sizes["ada"])
		}
	})
}

// An audience has a viewer without compression and two viewers with it. All three
// receive the same messages.
func TestCompressedViewersGetTheSameMessages(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		token := w.token(func(c *auth.Client) { c.Access, c.Audience = auth.AccessRead, "room" })
		all := []*clientEnd{w.dial(token), w.dialPacked(token), w.dialPacked(token)}
		for i, c := range all {
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"c%d","protocolVersions":["1"],"initialSubscriptions":["mock:/1"]}}`, i))
		}
		h := w.hostConn(1)
		synctest.Wait()
		h.send(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"1","serverSeq":3}}`)
		state := strings.Repeat("a long state. ", 30_000)
		snapshot := func(seq int) string { return fmt.Sprintf(`{"resource":"mock:/1","state":%q,"fromSeq":%d}`, state, seq) }
		answered := 1
		answer := func(seq int) { // answers the requests that have reached the host, with a snapshot
			for range len(all) {
				time.Sleep(100 * time.Millisecond)
				if synctest.Wait(); len(h.messages()) > answered {
					h.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"snapshot":%s}}`, answered, snapshot(seq)))
					answered++
				}
			}
		}
		answer(3)
		want := []string{fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1","serverSeq":3,"snapshots":[%s]}}`, snapshot(3))}
		for seq := 4; seq < 20; seq++ {
			action := fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/1","action":{"type":"x","text":%q},"serverSeq":%d}}`, strings.Repeat("word ", 20*seq), seq)
			want = append(want, action)
			h.send(action)
		}
		synctest.Wait()
		for _, c := range all {
			c.send(`{"jsonrpc":"2.0","id":2,"method":"subscribe","params":{"channel":"mock:/1"}}`)
		}
		answer(20)
		want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"result":{"snapshot":%s}}`, snapshot(20)))
		for _, c := range all {
			c.wantTold(want)
		}
	})
}

// wantTold is wantMessages for long messages: its error shows only the first difference,
// shortened.
func (c *clientEnd) wantTold(want []string) {
	c.w.Helper()
	synctest.Wait()
	got := c.messages()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			c.w.Errorf("message %d has %d bytes: %.200q; want %d bytes: %.200q", i, len(got[i]), got[i], len(want[i]), want[i])
			return
		}
	}
	if len(got) != len(want) {
		c.w.Errorf("the client got %d messages; want %d; its connection's end: %v", len(got), len(want), c.ended)
	}
}

// A client offers compression, but the relay's configuration forbids it. The relay
// sends a long message uncompressed.
func TestCompressionNeedsTheClientsOffer(t *testing.T) {
	inWorld(t, Config{Compress: wire.CompressOff}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dialPacked(w.token(nil))
		c.request(1, "initialize")
		h := w.hostConn(1)
		h.accept(1)
		long := fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"result":%q}`, strings.Repeat("x", 1<<16))
		h.send(long)
		c.wantTold([]string{answerTo(1), long})
		if n := w.server.hosts.all()[0].sock.Conn.Written.Load(); n < 1<<16 {
			t.Errorf("%d bytes were written to a client without compression; want at least 65536", n)
		}
	})
}

// The host's message reaches a client in pieces, compressed or stored, while the relay
// sends a message and pings of its own. The client reads the pieces as a single
// message, and the relay's message before or after it.
func TestDeflatedPiecesFormOneMessage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		words := []string{"the ", "agent ", "says ", "{\"type\":", "\n"}
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 100, wire.DeflateLeast - 20, wire.DeflateLeast, 70_000}), 1, 6).Draw(rt, "pieces")
		packs := rapid.SliceOfN(rapid.Bool(), len(sizes), len(sizes)).Draw(rt, "shared")
		between := rapid.IntRange(0, len(sizes)).Draw(rt, "between")
		wrong := ""
		synctest.Test(t, func(t *testing.T) {
			e := newOutboxEnd(t, 100<<20)
			e.packing.On = true
			whole := ""
			for i, size := range sizes {
				var b strings.Builder
				for n := i; b.Len() < size; n++ {
					b.WriteString(words[n*n%len(words)])
				}
				piece := b.String()
				whole += piece
				encode := wire.EncodePiece
				if packs[0] { // all pieces come compressed from the audience
					encode = wire.DeflatePiece
				}
				if i == between {
					e.pushOwn(wire.EncodePiece([]byte("own"), true, true, false))
				}
				e.push(routing.Frame{Data: encode([]byte(piece), i == 0, i == len(sizes)-1, false)})
				e.ping()
			}
			if between == len(sizes) {
				e.pushOwn(wire.EncodePiece([]byte("own"), true, true, false))
			}
			want := []string{whole, "own"}
			if between == 0 {
				want = []string{"own", whole}
			}
			e.wg.Go(func() { _, _ = io.Copy(io.Discard, e.sock.Conn) }) // drops the client's pongs
			client := clientOf(t, e.conn)
			for _, want := range want {
				kind, got, err := client.Read(t.Context())
				if err != nil || kind != websocket.MessageText || string(got) != want {
					wrong = fmt.Sprintf("got %d bytes %.100q, %v; want %d", len(got), got, err, len(want))
					break
				}
			}
			_ = client.CloseNow()
			_ = e.conn.Close()
			e.wg.Wait()
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// A packedHandshake answers a client's handshake as a server that agrees to
// compression. The client then uses conn as its connection.
type packedHandshake struct{ conn net.Conn }

// RoundTrip implements [http.RoundTripper].
func (h packedHandshake) RoundTrip(r *http.Request) (*http.Response, error) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455, section 4.2.2
	header := http.Header{}
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Accept": base64.StdEncoding.EncodeToString(sum[:]),
		"Sec-WebSocket-Extensions": "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
	} {
		header.Set(name, value)
	}
	return &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: header, Body: h.conn, Request: r}, nil
}

// clientOf returns a client of the library coder/websocket, with compression, at the
// far end of a connection.
func clientOf(t *testing.T, conn net.Conn) *websocket.Conn {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), "ws://relay", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: packedHandshake{conn}}, CompressionMode: websocket.CompressionNoContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	return ws
}
