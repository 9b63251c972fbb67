package hostagent

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/routing"
)

// hostFrame returns a WebSocket frame without a mask, as hosts send it.
func hostFrame(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, payload...)
}

// A rawHost is a host's end of a WebSocket, at which tests write and read single frames.
type rawHost struct {
	net.Conn
	in *bufio.Reader
}

// dialRaw connects a webSocket to a rawHost. The host sends the bytes early in the same write as
// its handshake.
func dialRaw(t *testing.T, limit int, early []byte) (*webSocket, *rawHost) {
	t.Helper()
	accepted := make(chan *rawHost, 1)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		answer := fmt.Appendf(nil, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
		_, _ = conn.Write(append(answer, early...))
		accepted <- &rawHost{conn, rw.Reader}
	})
	sock, err := Upstream{URL: wsURL(server)}.dial(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	host := <-accepted
	t.Cleanup(func() {
		_ = host.Close()
		sock.Close("done")
	})
	return sock.(*webSocket), host
}

// say writes frames to the host-agent in a single write.
func (h *rawHost) say(t *testing.T, frames ...[]byte) {
	t.Helper()
	if _, err := h.Write(bytes.Join(frames, nil)); err != nil {
		t.Fatal(err)
	}
}

// hear reads a frame from the host-agent, and fails unless it is masked.
func (h *rawHost) hear(t *testing.T) (first byte, payload string) {
	t.Helper()
	_ = h.SetReadDeadline(time.Now().Add(time.Minute))
	read := func(n int) []byte {
		b := make([]byte, n)
		if _, err := io.ReadFull(h.in, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := read(2)
	if b[1]&maskBit == 0 {
		t.Fatal("the host-agent's frame for the host is not masked; want a mask")
	}
	n := int(b[1] &^ maskBit)
	switch n {
	case 126:
		n = int(binary.BigEndian.Uint16(read(2)))
	case 127:
		n = int(binary.BigEndian.Uint64(read(8)))
	}
	key, data := read(4), read(n)
	for i := range data {
		data[i] ^= key[i%4]
	}
	return b[0], string(data)
}

// TestLegalFramesAreRead sends messages in all forms that the protocol permits. Read must return
// each message, and the host-agent must answer the ping.
func TestLegalFramesAreRead(t *testing.T) {
	long := strings.Repeat("l", routing.MaxLent)
	longer := strings.Repeat("m", routing.MaxLent+1)
	sock, host := dialRaw(t, 1<<20, hostFrame(finBit|opText, "early"))
	host.say(t,
		hostFrame(finBit|opText, ""), hostFrame(finBit|opBinary, "b"), hostFrame(finBit|opText, long), hostFrame(finBit|opText, longer),
		hostFrame(opText, "in "), hostFrame(finBit|opPing, "now"), hostFrame(opContinuation, ""), hostFrame(finBit|opContinuation, "pieces"),
		hostFrame(finBit|opPong, "odd"), hostFrame(finBit|opText, "last"),
	)
	for i, want := range []string{"early", "", "b", long, longer, "in pieces", "last"} {
		got, binary, err := sock.Read()
		if string(got) != want || binary != (want == "b") || err != nil {
			t.Fatalf("message %d is %.20q, binary %v, %v; want %.20q", i, got, binary, err, want)
		}
	}
	if first, payload := host.hear(t); first != finBit|opPong || payload != "now" {
		t.Errorf("the answer to a ping is %#x %q; want a pong with now", first, payload)
	}
	if sock.Whole() {
		t.Error("Whole = true without a further message; want false")
	}
}

// TestWholeIsTrueForCompleteMessages sends a message and a part of the next message. Whole must be
// true exactly if Read can return the next message without waiting.
func TestWholeIsTrueForCompleteMessages(t *testing.T) {
	first := hostFrame(finBit|opText, "")
	for _, next := range [][]byte{
		hostFrame(finBit|opText, ""), hostFrame(finBit|opBinary, "b"), hostFrame(finBit|opText, strings.Repeat("m", 125)),
		hostFrame(finBit|opText, strings.Repeat("m", 126)), hostFrame(finBit|opText, strings.Repeat("l", 5000)),
	} {
		for _, n := range []int{0, 1, 2, 3, 4, 5, 126, 127, 128, 129, 130, len(next) - 1, len(next), len(next) + 1} {
			sock, host := dialRaw(t, 1<<20, nil)
			host.say(t, first, append(next, finBit|opText)[:min(n, len(next)+1)])
			if _, _, err := sock.Read(); err != nil {
				t.Fatal(err)
			}
			if got, want := sock.Whole(), n >= len(next); got != want {
				t.Errorf("%d bytes of a frame of %d: Whole = %v; want %v", n, len(next), got, want)
			}
		}
	}
	for _, other := range [][]byte{hostFrame(finBit|opPing, "p"), hostFrame(opText, "part"), hostFrame(finBit|opText, strings.Repeat("l", readSize))} {
		sock, host := dialRaw(t, 1<<20, nil)
		host.say(t, first, other)
		if _, _, err := sock.Read(); err != nil {
			t.Fatal(err)
		}
		if sock.Whole() {
			t.Errorf("Whole = true for a frame that begins with %x; want false", other[:2])
		}
	}
}

// TestMessageInManyPiecesIsNotCopied sends a message in 500 frames. Read must not allocate memory
// as if each frame copied the whole message.
func TestMessageInManyPiecesIsNotCopied(t *testing.T) {
	const piece, pieces = 4 << 10, 500
	sock, host := dialRaw(t, piece*pieces, nil)
	said := make(chan error, 1)
	go func() {
		part := strings.Repeat("x", piece)
		_, err := host.Write(hostFrame(opText, part))
		for i := 1; i < pieces && err == nil; i++ {
			first := byte(opContinuation)
			if i == pieces-1 {
				first |= finBit
			}
			_, err = host.Write(hostFrame(first, part))
		}
		said <- err
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	message, _, err := sock.Read()
	runtime.ReadMemStats(&after)
	if err := errors.Join(err, <-said); err != nil || len(message) != piece*pieces {
		t.Fatalf("a message in many pieces has %d bytes, %v; want all", len(message), err)
	}
	if cap(message) > piece*pieces {
		t.Errorf("the message's buffer has room for %d bytes; want at most %d", cap(message), piece*pieces)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 20*piece*pieces {
		t.Errorf("%d bytes were allocated for a message of %d; want at most 20 times the pieces' size", took, len(message))
	}
}

// TestBrokenFramesEndTheConnection sends frames that break the protocol or exceed the limit. Read
// must fail, and the host must get a close frame with the right code.
func TestBrokenFramesEndTheConnection(t *testing.T) {
	big := hostFrame(finBit|opText, "")
	big[1] = 127
	big = append(big, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	for name, test := range map[string]struct {
		frames [][]byte
		code   websocket.StatusCode
	}{
		"reserved bits":          {[][]byte{{finBit | 0x40 | opText, 0}}, websocket.StatusProtocolError},
		"masked":                 {[][]byte{{finBit | opText, maskBit | 1, 1, 2, 3, 4, 5}}, websocket.StatusProtocolError},
		"unknown":                {[][]byte{{finBit | 3, 0}}, websocket.StatusProtocolError},
		"unknown control":        {[][]byte{{finBit | 11, 0}}, websocket.StatusProtocolError},
		"continuation first":     {[][]byte{hostFrame(finBit|opContinuation, "x")}, websocket.StatusProtocolError},
		"text in a message":      {[][]byte{hostFrame(opText, "x"), hostFrame(finBit|opText, "y")}, websocket.StatusProtocolError},
		"control in pieces":      {[][]byte{hostFrame(opPing, "")}, websocket.StatusProtocolError},
		"long control":           {[][]byte{hostFrame(finBit|opPing, strings.Repeat("x", 126))}, websocket.StatusProtocolError},
		"over the limit":         {[][]byte{hostFrame(finBit|opText, strings.Repeat("x", 1001))}, websocket.StatusMessageTooBig},
		"in pieces over limit":   {[][]byte{hostFrame(opText, strings.Repeat("x", 600)), hostFrame(finBit|opContinuation, strings.Repeat("x", 401))}, websocket.StatusMessageTooBig},
		"more than there can be": {[][]byte{big}, websocket.StatusMessageTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			sock, host := dialRaw(t, 1000, nil)
			host.say(t, test.frames...)
			if _, _, err := sock.Read(); err == nil || tooBig(err) != (test.code == websocket.StatusMessageTooBig) {
				t.Errorf("reading a broken frame: %v; want an error, and tooBig only for a long message", err)
			}
			first, payload := host.hear(t)
			if first != finBit|opClose || len(payload) < 2 || binary.BigEndian.Uint16([]byte(payload)) != uint16(test.code) {
				t.Errorf("the host receives the frame %#x %q; want a close with %d", first, payload, test.code)
			}
			if err := sock.Write([]byte("x"), false); err == nil {
				t.Error("Write succeeded after the close frame; want an error")
			}
		})
	}
}

// TestHostsCloseCodeIsReturned sends a close frame from the host. Read must return its code and
// reason, and the host must get a close frame as answer.
func TestHostsCloseCodeIsReturned(t *testing.T) {
	for _, test := range []struct {
		payload string
		code    websocket.StatusCode
		reason  string
	}{
		{"\x03\xf4go away", 1012, "go away"},
		{"", websocket.StatusNoStatusRcvd, ""},
		{"x", websocket.StatusNoStatusRcvd, ""},
	} {
		sock, host := dialRaw(t, 1000, nil)
		host.say(t, hostFrame(finBit|opText, "before"), hostFrame(finBit|opClose, test.payload))
		if got, _, err := sock.Read(); string(got) != "before" || err != nil {
			t.Fatalf("before the close, Read = %q, %v; want before", got, err)
		}
		var closed websocket.CloseError
		for range 2 {
			if _, _, err := sock.Read(); !errors.As(err, &closed) || closed.Code != test.code || closed.Reason != test.reason {
				t.Errorf("Read after the host's close frame = %v; want a close with %d %s", err, test.code, test.reason)
			}
		}
		if first, _ := host.hear(t); first != finBit|opClose {
			t.Errorf("the host receives the frame %#x; want a close", first)
		}
	}
}

// TestCloseSaysGoodbye closes a connection, with and without a goroutine in Read. Close must send a
// close frame, and wait for the host's.
func TestCloseSaysGoodbye(t *testing.T) {
	for _, reader := range []string{"nobody", "Read"} {
		t.Run(reader, func(t *testing.T) {
			sock, host := dialRaw(t, 1000, hostFrame(finBit|opText, "first"))
			if _, _, err := sock.Read(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if reader == "Read" {
					_, _, _ = sock.Read()
				}
			}()
			closed := make(chan struct{})
			go func() {
				sock.Close("client gone")
				close(closed)
			}()
			if first, payload := host.hear(t); first != finBit|opClose || payload != "\x03\xe8client gone" {
				t.Errorf("the host receives %#x %q; want a close with code 1000, client gone", first, payload)
			}
			host.say(t, hostFrame(finBit|opText, "late"), hostFrame(finBit|opClose, "\x03\xe8"))
			if n, err := io.Copy(io.Discard, host.in); err != nil || n != 0 {
				t.Errorf("after the close frame, the host receives %d bytes, %v; want the end", n, err)
			}
			<-closed
			<-ended
		})
	}
}

// TestCloseBesideReader closes a connection while the caller still uses a message from Read, and
// the host sends more. The message must stay unchanged.
func TestCloseBesideReader(t *testing.T) {
	sock, host := dialRaw(t, 1<<20, nil)
	const first, size = "the first message", 20 << 10
	host.say(t, hostFrame(finBit|opText, first))
	message, _, err := sock.Read()
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		sock.Close("client gone")
	}()
	host.hear(t) // the host-agent's close frame
	for range 20 {
		host.say(t, hostFrame(finBit|opText, strings.Repeat("x", size)))
	}
	host.say(t, hostFrame(finBit|opClose, ""))
	<-closed
	if string(message) != first {
		t.Errorf("after the close, the message read before is %q; want it unchanged", message)
	}
}

// TestCloseReservesNothing closes a connection while the host sends a message that needs a reservation. Close must make
// none, because a reservation belongs to the goroutine that reads, and nothing would end this one.
func TestCloseReservesNothing(t *testing.T) {
	sock, host := dialRaw(t, 1<<20, nil)
	reserved := make(chan int, 1)
	sock.room = func(bytes int) error {
		reserved <- bytes
		return nil
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		sock.Close("client gone")
	}()
	host.hear(t) // the host-agent's close frame
	_, _ = host.Write(append(hostFrame(finBit|opText, strings.Repeat("x", 2*routing.Reserved)), hostFrame(finBit|opClose, "")...))
	<-closed
	if len(reserved) > 0 {
		t.Errorf("Close has reserved %d bytes; want nothing", <-reserved)
	}
}

// TestWriteFrames writes messages to a server that uses a WebSocket library. The server must get
// each message unchanged, and Write must not change the caller's bytes.
func TestWriteFrames(t *testing.T) {
	got := make(chan string)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(-1)
		for {
			_, message, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			got <- string(message)
		}
	})
	sock, err := Upstream{URL: wsURL(server)}.dial(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close("done")
	for _, n := range []int{0, 1, 7, 8, 9, 125, 126, 1000, 65535, 65536, 3*writeSize + 5} {
		message := make([]byte, n)
		for i := range message {
			message[i] = 'a' + byte(i%26)
		}
		before := bytes.Clone(message)
		if err := sock.Write(message, false); err != nil {
			t.Fatal(err)
		}
		if text := <-got; text != string(before) {
			t.Errorf("the host received a message of %d bytes as %d bytes, or they differ; want the same", n, len(text))
		}
		if !bytes.Equal(message, before) {
			t.Errorf("Write has changed the message of %d bytes; want it as it was", n)
		}
	}
}

// memoryStream reads a host's bytes from memory, and drops what is written.
type memoryStream struct{ io.Reader }

func (memoryStream) Write(p []byte) (int, error) { return len(p), nil }
func (memoryStream) Close() error                { return nil }

// TestLongMessagesAreSkipped sends messages above the limit, in one frame or in several with
// control frames between. Read must skip the message and return its kind and id, wherever the id is
// in it. Then Read must return the next message.
func TestLongMessagesAreSkipped(t *testing.T) {
	pad := strings.Repeat(`{\"id\":1}`, 10_000)
	for message, want := range map[string]string{
		`{"id":7,"result":{"id":8,"data":"` + pad + `"}}`:              "response 7",
		`{"result":{"id":8,"data":"` + pad + `"},"id":"x"}`:            `response "x"`,
		`{"params":{"id":8,"data":"` + pad + `"},"method":"m","id":9}`: "request 9",
	} {
		for _, pieces := range []int{1, 2, 50} {
			sock, host := dialRaw(t, 1000, nil)
			go func() {
				for i := range pieces {
					part := message[i*len(message)/pieces : (i+1)*len(message)/pieces]
					first := byte(opContinuation)
					if i == 0 {
						first = opText
					}
					if i == pieces-1 {
						first |= finBit
					}
					_, _ = host.Write(hostFrame(first, part))
					if i%10 == 1 {
						_, _ = host.Write(hostFrame(finBit|opPong, "between"))
					}
				}
				_, _ = host.Write(hostFrame(finBit|opText, `{"method":"next"}`))
			}()
			_, _, err := sock.Read()
			var skip *skippedError
			if !errors.As(err, &skip) {
				t.Fatalf("a long message in %d pieces: %v; want a skippedError", pieces, err)
			}
			if got := fmt.Sprintf("%v %s", skip.env.Kind, skip.env.ID); got != want || skip.size != len(message) || skip.limit != 1000 {
				t.Errorf("in %d pieces: %s of %d bytes, limit %d; want %s of %d", pieces, got, skip.size, skip.limit, want, len(message))
			}
			if next, _, err := sock.Read(); err != nil || string(next) != `{"method":"next"}` {
				t.Errorf("the message after the long one is %q, %v; want next", next, err)
			}
		}
	}
}

// FuzzReadFrames reads random bytes, whole and in pieces. No message may exceed the limit, and the
// pieces must make no difference.
func FuzzReadFrames(f *testing.F) {
	f.Add(hostFrame(finBit|opText, "one"), 1)
	f.Add(append(hostFrame(opText, "one"), hostFrame(finBit|opContinuation, strings.Repeat("x", 300))...), 3)
	f.Add(append(hostFrame(finBit|opPing, "p"), hostFrame(finBit|opClose, "\x03\xe8bye")...), 2)
	f.Add([]byte{finBit | opText, 127, 0xff, 0, 0, 0, 0, 0, 0, 0, 'x'}, 4)
	const limit = 40_000
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		read := func(in io.Reader) (messages []string, end string) {
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			go func() { _, _ = io.Copy(io.Discard, far) }() // takes the answers to pings, for which the socket would wait
			s := newWebSocket(near, memoryStream{in}, true, limit, nil)
			for {
				m, _, err := s.Read()
				if err != nil {
					return messages, err.Error()
				}
				if len(m) > limit {
					t.Fatalf("a message has %d bytes; want at most the limit", len(m))
				}
				messages = append(messages, string(m))
			}
		}
		whole, end := read(bytes.NewReader(data))
		pieces, endOfPieces := read(&inPieces{data, 1 + max(0, piece)%100})
		if strings.Join(whole, "\n") != strings.Join(pieces, "\n") || end != endOfPieces {
			t.Errorf("whole input: %d messages and %s; in pieces: %d and %s; want the same", len(whole), end, len(pieces), endOfPieces)
		}
	})
}

// inPieces is a reader that returns at most n bytes at a time.
type inPieces struct {
	data []byte
	n    int
}

func (r *inPieces) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.n)], r.data)
	r.data = r.data[n:]
	return n, nil
}
