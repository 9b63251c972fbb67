package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
)

// A client of the library coder/websocket reads frames from EncodePiece, whole and in
// pieces with control frames in between.
func TestFramesAreRead(t *testing.T) {
	var sent [][]byte
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 1 << 20} {
		sent = append(sent, bytes.Repeat([]byte{'x'}, n))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws := dialFrames(t, func(conn io.Writer) {
		for _, m := range sent {
			_, _ = conn.Write(EncodePiece(m, true, true, false))
			_, _ = conn.Write(EncodePiece(m, true, true, true))
			_, _ = conn.Write(AppendFrame(nil, FinBit|OpPong, []byte("between")))
			// In three pieces, with control frames in between.
			_, _ = conn.Write(EncodePiece(m[:len(m)/3], true, false, false))
			_, _ = conn.Write(AppendFrame(nil, FinBit|OpPong, nil))
			_, _ = conn.Write(EncodePiece(m[len(m)/3:len(m)/2], false, false, false))
			_, _ = conn.Write(AppendFrame(nil, FinBit|OpPong, bytes.Repeat([]byte{'x'}, 125)))
			_, _ = conn.Write(EncodePiece(m[len(m)/2:], false, true, false))
		}
	})
	for _, m := range sent {
		for i, want := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary, websocket.MessageText} {
			kind, got, err := ws.Read(ctx)
			if err != nil || kind != want || !bytes.Equal(got, m) {
				t.Fatalf("message %d of %d bytes: read %d bytes of kind %v, %v; want kind %v", i, len(m), len(got), kind, err, want)
			}
		}
	}
}

// dialFrames starts a server that calls send with the connection, and then closes it.
// It returns a client connected to that server.
func dialFrames(t *testing.T, send func(conn io.Writer)) *websocket.Conn {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sock, err := Accept(context.Background(), w, r, nil, 10*time.Second, websocket.CompressionDisabled)
		if err != nil {
			t.Error(err)
			return
		}
		send(sock.Conn)
		sock.Close(1000, "")
	}))
	t.Cleanup(server.Close)
	ws, _, err := websocket.Dial(t.Context(), server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	t.Cleanup(func() { _ = ws.CloseNow() })
	return ws
}

// EncodePiece writes frame heads as RFC 6455, section 5.2, requires.
func TestEncodePieceWritesValidHeads(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 65535, 65536} {
		message := bytes.Repeat([]byte{'x'}, n)
		for _, piece := range []struct {
			first, last, binary bool
			head                byte
		}{
			{true, true, false, 0x81}, {true, true, true, 0x82}, {true, false, false, 0x01}, {false, true, false, 0x80},
		} {
			frame := EncodePiece(message, piece.first, piece.last, piece.binary)
			header, length := 2, int(frame[1])
			switch length {
			case 126:
				header, length = 4, int(binary.BigEndian.Uint16(frame[2:]))
			case 127:
				header, length = 10, int(binary.BigEndian.Uint64(frame[2:]))
			}
			if frame[0] != piece.head || length != n || !bytes.Equal(frame[header:], message) {
				t.Errorf("encodePiece of %d bytes, %+v begins with % x; want the head, length and message of the piece", n, piece, frame[:header])
			}
		}
	}
}

func TestLongReasonsAreCutBetweenCharacters(t *testing.T) {
	for _, test := range []struct{ reason, want string }{
		{"", ""},
		{strings.Repeat("x", 123), strings.Repeat("x", 123)},
		{strings.Repeat("x", 124), strings.Repeat("x", 120) + "..."},
		// The cut falls into a character with two bytes at 119, or with four at 117.
		{strings.Repeat("x", 119) + "éééé", strings.Repeat("x", 119) + "..."},
		{strings.Repeat("x", 117) + "🙂🙂", strings.Repeat("x", 117) + "..."},
		{strings.Repeat("x", 116) + "🙂🙂", strings.Repeat("x", 116) + "🙂..."},
		{"\xff\xfe is no UTF-8", "? is no UTF-8"},
		// Each invalid byte becomes a question mark, and the text is cut.
		{strings.Repeat("x\xff", 100), strings.Repeat("x?", 60) + "..."},
	} {
		got := fitReason(test.reason)
		if got != test.want || len(got) > maxReason || !utf8.ValidString(got) {
			t.Errorf("fitReason(%q) = %q; want %q", test.reason, got, test.want)
		}
	}
}

// noted lets ReadAll use any amount of memory.
func noted(int) error { return nil }

// ReadAll reads messages around the sizes of the buffer and the limit. It fails above
// the limit, and with the reader's error.
func TestMessagesOfEachSizeAreRead(t *testing.T) {
	for _, size := range []int{0, 1, FirstBuffer, FirstBuffer + 1, 100_000, 100_001} {
		message := strings.Repeat("x", size)
		got, err := ReadAll(strings.NewReader(message), make([]byte, 0, FirstBuffer), 100_000, noted)
		if size <= 100_000 && (err != nil || string(got) != message) {
			t.Errorf("ReadAll of %d bytes: %d bytes, %v; want the message", size, len(got), err)
		}
		if size > 100_000 && !errors.Is(err, ErrTooBig) {
			t.Errorf("readAll of %d bytes: %v; want too big", size, err)
		}
	}
	if _, err := ReadAll(io.MultiReader(strings.NewReader("x"), errReader{}), nil, 10, noted); !errors.Is(err, os.ErrPermission) {
		t.Errorf("readAll of a reader that fails: %v; want its error", err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, os.ErrPermission }

// Two goroutines write to a connection at once. The bytes of each write stay together.
func TestConcurrentWritesStayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := NewConn(context.Background(), near, time.Second)
		for _, letter := range "ab" {
			go func() { fmt.Fprint(c, strings.Repeat(string(letter), 1000)) }()
		}
		got := make([]byte, 0, 2000)
		for len(got) < 2000 {
			n, err := far.Read(got[len(got):min(len(got)+7, 2000)])
			if err != nil {
				t.Fatal(err)
			}
			got = got[:len(got)+n]
		}
		a, b := strings.Repeat("a", 1000), strings.Repeat("b", 1000)
		if string(got) != a+b && string(got) != b+a {
			t.Error("the bytes from two goroutines are mixed; want each write whole")
		}
		_ = c.Close()
	})
}

// EncodeIn returns the same frame as EncodePiece, and leaves the message unchanged.
func TestEncodeInEqualsEncodePiece(t *testing.T) {
	for _, binary := range []bool{false, true} {
		for _, size := range []int{0, 1, 125, 126, 1000, 1<<16 - 1, 1 << 16} {
			message := bytes.Repeat([]byte("m"), size)
			want := EncodePiece(message, true, true, binary)
			for _, at := range []int{0, 1, 2, 3, 4, 9, 10, 40} {
				buffer := append(bytes.Repeat([]byte("p"), at), message...)
				if got := EncodeIn(buffer, at, binary); !bytes.Equal(got, want) {
					t.Errorf("EncodeIn of %d bytes at %d makes %d bytes; want the same %d bytes as EncodePiece", size, at, len(got), len(want))
				}
				if !bytes.Equal(buffer[at:], message) {
					t.Errorf("EncodeIn has changed the message of %d bytes at %d; want it as it was", size, at)
				}
			}
			if appended := AppendWhole([]byte("x"), message, binary); !bytes.Equal(appended[1:], want) {
				t.Errorf("AppendWhole of %d bytes differs from EncodePiece; want the same bytes", size)
			}
		}
	}
}

// tcpPair returns both ends of a connection over TCP.
func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// A deadlineConn records the last write deadline.
type deadlineConn struct {
	*net.TCPConn
	last atomic.Pointer[time.Time]
}

func (c *deadlineConn) SetWriteDeadline(t time.Time) error {
	c.last.Store(&t)
	return c.TCPConn.SetWriteDeadline(t)
}

// A write larger than the kernel's buffer continues when the peer reads. It ignores an
// earlier write deadline, and leaves none behind.
func TestPacedWriteContinues(t *testing.T) {
	end, far := tcpPair(t)
	near := &deadlineConn{TCPConn: end.(*net.TCPConn)}
	conn, pace := paced(near, time.Minute)
	large := make([]byte, 32<<20)
	for i := range large {
		large[i] = byte(i >> 8)
	}
	for _, size := range []int{1, len(large), 2, len(large), 3} {
		if err := near.SetWriteDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		before := pace.Written.Load()
		done := make(chan error, 1)
		go func() {
			n, err := conn.Write(large[:size])
			if err == nil && n != size {
				err = io.ErrShortWrite
			}
			if err != nil {
				_ = near.Close() // otherwise the peer waits for the rest
			}
			done <- err
		}()
		for size == len(large) && pace.waited.Get().IsZero() { // until the write has blocked
			time.Sleep(time.Millisecond)
		}
		got := make([]byte, size)
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, large[:size]) {
			t.Fatalf("reading %d bytes at the far end: %v, or they differ; want the sent bytes", size, err)
		}
		if err := <-done; err != nil || pace.Written.Load()-before != uint64(size) || !pace.standing.Get().IsZero() {
			t.Fatalf("write of %d bytes: %v, and %d are counted; want no error, and all counted", size, err, pace.Written.Load()-before)
		}
		if left := near.last.Load(); !left.IsZero() {
			t.Fatalf("the deadline %v is left after the write; want none", left)
		}
	}
}
