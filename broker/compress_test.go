package broker

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/klauspost/compress/zstd"
)

// TestPackedPiecesArriveAtOnce writes pieces to a packer. Each must come out of the Unpacker at
// once, complete and unchanged, before the next is written.
func TestPackedPiecesArriveAtOnce(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	p, err := newPacker(near)
	if err != nil {
		t.Fatal(err)
	}
	u := NewUnpacker(far)
	defer u.Close()
	noise := make([]byte, 300_000)
	_, _ = rand.Read(noise)
	pieces := [][]byte{[]byte("x"), bytes.Repeat([]byte("PUB ahp.v1 "), 100_000), noise, {}}
	for i := range 200 {
		pieces = append(pieces, fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"action","params":{"serverSeq":%d}}`, i))
	}
	sent := make(chan error, 1)
	for i, piece := range pieces {
		go func() {
			_, err := p.Write(piece)
			sent <- err
		}()
		got := make([]byte, len(piece))
		if _, err := io.ReadFull(u, got); err != nil || !bytes.Equal(got, piece) {
			t.Fatalf("piece %d of %d bytes arrives changed, %v; want the same bytes", i, len(piece), err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

// unpack decompresses a stream. It returns the length of the result, and the error.
func unpack(t testing.TB, stream []byte) (n int64, err error) {
	t.Helper()
	u := NewUnpacker(bytes.NewReader(stream))
	defer u.Close()
	return io.Copy(io.Discard, u)
}

// compressed returns n zeros as a compressed stream with the given window size.
func compressed(t testing.TB, n, window int) []byte {
	t.Helper()
	var b bytes.Buffer
	e, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for ; n > 0; n -= len(zeros) {
		if _, err := e.Write(zeros[:min(n, len(zeros))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestUnpackerIsBounded decompresses a short stream with 64 MiB of content, which must use little
// memory, and a stream with a larger window than agreed, which must be refused.
func TestUnpackerIsBounded(t *testing.T) {
	const length = 64 << 20 // zeros, which compress to a few KiB
	short := compressed(t, length, compressWindow)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if n, err := unpack(t, short); n != length || err != nil {
		t.Errorf("%d compressed zeros unpack to %d bytes, %v; want %[1]d bytes", length, n, err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("unpacking a stream of %[2]d bytes allocates %[1]d bytes; want less than 4 MiB", took, len(short))
	}
	if _, err := unpack(t, compressed(t, 10<<20, 8<<20)); !errors.Is(err, zstd.ErrWindowSizeExceeded) {
		t.Errorf("unpacking a stream with a window of 8 MiB: %v; want %v", err, zstd.ErrWindowSizeExceeded)
	}
}

// FuzzUnpacker decompresses arbitrary input. It must not panic.
func FuzzUnpacker(f *testing.F) {
	f.Add(compressed(f, 1000, compressWindow))
	f.Add(compressed(f, 8<<20, compressWindow))
	f.Add([]byte("PUB ahp.v1.default.laptop.x 1\r\nx\r\n"))
	f.Fuzz(func(t *testing.T, stream []byte) { _, _ = unpack(t, stream) })
}

// TestCompressionIsAskedFor dials relays that support compression or do not. The host-agent must
// ask for it if it is configured, and compress only if the relay's answer accepts it.
func TestCompressionIsAskedFor(t *testing.T) {
	for _, test := range []struct{ compress, knows string }{
		{Zstandard, Zstandard}, {Zstandard, ""}, {"", Zstandard},
	} {
		t.Run(fmt.Sprintf("%q of %q", test.compress, test.knows), func(t *testing.T) {
			got := make(chan []byte, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked := r.Header.Get(CompressHeader); asked != test.compress || asked != "" && Compresses(asked) != asked {
					t.Errorf("the agent asks for the compression %q; want %q, a compression that Compresses knows", asked, test.compress)
				}
				if test.knows != "" {
					w.Header().Set(CompressHeader, test.knows)
				}
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					return
				}
				defer ws.CloseNow()
				_, first, _ := ws.Read(r.Context())
				got <- first
			}))
			defer server.Close()
			d := wsDialer{compress: test.compress}
			c, err := d.dial(t.Context(), t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), dialTCP)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			const text = "PING\r\n"
			if _, err := c.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			first := []byte(nil)
			select {
			case first = <-got:
			case <-time.After(time.Minute):
				t.Fatal("the relay gets nothing for a minute; want the agent's first bytes")
			}
			if plain := string(first) == text; plain == (test.compress == Zstandard && test.knows == Zstandard) {
				t.Errorf("the relay got the bytes %q; want them compressed only if both sides know Zstandard", first)
			}
		})
	}
	if got := Compresses("brotli"); got != "" {
		t.Errorf("Compresses(brotli) = %q; want no method", got)
	}
}

// TestEndIsNoLoss ends a host-agent's connection: because the host-agent stops, or because the connection has failed. The relay must be
// able to tell one from the other, also in the middle of a compressed frame.
func TestEndIsNoLoss(t *testing.T) {
	for _, compress := range []string{"", Zstandard} {
		for _, stops := range []bool{true, false} {
			ended := make(chan error, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set(CompressHeader, compress)
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					return
				}
				defer ws.CloseNow()
				stream := io.Reader(websocket.NetConn(r.Context(), ws, websocket.MessageBinary))
				if compress != "" {
					stream = NewUnpacker(stream)
				}
				ended <- Pump(io.Discard, stream)
			}))
			var closing atomic.Bool
			closing.Store(stops)
			d := wsDialer{compress: compress, closing: &closing}
			c, err := d.dial(t.Context(), t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), dialTCP)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(make([]byte, 2*someSize)); err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			if err := <-ended; (err == io.EOF) != stops {
				t.Errorf("compressed with %q, at the end of the host-agent: %v, the relay's stream ends with %v; want io.EOF at that end only", compress, stops, err)
			}
			server.Close()
		}
	}
}
