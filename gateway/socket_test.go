package gateway

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
)

// noted lets wire.ReadAll use any amount of memory.
func noted(int) error { return nil }

func TestCloseReasonNamesItsCode(t *testing.T) {
	for _, test := range []struct {
		code         ahp.CloseCode
		detail, want string
	}{
		{ahp.CloseHostOffline, "", "host offline"},
		{ahp.CloseHostOffline, "asleep", "host offline: asleep"},
		{ahp.CloseResync, "the host closed this connection", "resync: the host closed this connection"},
		{1000, "done", "done"},
		{1000, "", ""},
	} {
		if got := closeReason(test.code, test.detail); got != test.want {
			t.Errorf("closeReason(%d, %q) = %q; want %q", test.code, test.detail, got, test.want)
		}
	}
}

// A client sends messages directly behind its handshake, and one more later. The relay
// reads all of them, and counts the later bytes as a sign of life.
func TestMessageBehindTheHandshakeIsRead(t *testing.T) {
	for _, size := range []int{1, 100, 3000, 100_000} {
		done := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(done)
			sock, err := wire.Accept(context.Background(), w, r, nil, 10*time.Second, websocket.CompressionDisabled)
			if err != nil {
				t.Error(err)
				return
			}
			defer sock.Kill()
			for i := range 3 {
				heard := sock.Conn.Reads.Load()
				in, _, err := sock.Next()
				if err != nil {
					t.Errorf("reading message %d: %v; want no error", i, err)
					return
				}
				message, err := wire.ReadAll(in, nil, 1<<20, noted)
				if err != nil || string(message) != strings.Repeat("x", size) {
					t.Errorf("message %d: %d bytes, %v; want %d", i, len(message), err, size)
				}
				if i == 2 && sock.Conn.Reads.Load() == heard {
					t.Error("the read of the last message is not counted; want more reads than before")
				}
				_ = sock.Write(wire.EncodePiece([]byte("next"), true, true, false))
			}
		}))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		message := frame(wire.FinBit|wire.OpText, bytes.Repeat([]byte{'x'}, size))
		handshake := "GET / HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
		if _, err := conn.Write(append(append([]byte(handshake), message...), message...)); err != nil {
			t.Fatal(err)
		}
		read := bufio.NewReader(conn)
		if _, err := http.ReadResponse(read, nil); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, _, err := readFrame(read); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = conn.Write(message)
		<-done
		_ = conn.Close()
		server.Close()
	}
}

// A write to a host-agent becomes a single frame in a single system call, for any
// length.
func TestAgentFramesAreWhole(t *testing.T) {
	for _, size := range []int{1, 200, 600, 5000, 70_000} {
		near, far := net.Pipe()
		conn := wire.NewConn(context.Background(), near, time.Minute)
		piece := bytes.Repeat([]byte{'x'}, size)
		go func() {
			if n, err := (binaryFrames{sock: &wire.Socket{Conn: conn}}).Write(piece); n != size || err != nil {
				t.Errorf("Write of %d bytes = %d, %v; want all bytes", size, n, err)
			}
		}()
		got := make([]byte, size+20)
		n, err := far.Read(got) // returns a whole write, if there is room
		if want := wire.EncodePiece(piece, true, true, true); err != nil || !bytes.Equal(got[:n], want) {
			t.Errorf("Write of %d bytes sends %d bytes at once, %v; want one frame of %d bytes", size, n, err, len(want))
		}
		_, _ = conn.Close(), far.Close()
	}
}
