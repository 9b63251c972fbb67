package idle

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// pair returns the two ends of a connection.
func pair(t *testing.T, network, address string) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
	})
	return near, far
}

// short is a pool of buffers of four bytes.
var short = sync.Pool{New: func() any { b := make([]byte, 4); return &b }}

// A reading is the result of a call of Read.
type reading struct {
	text string
	err  error
}

// start calls Read once in a new goroutine, and returns a channel for the result.
func start(r *Reader) <-chan reading {
	done := make(chan reading, 1)
	go func() {
		buf, n, err := r.Read()
		if buf == nil {
			done <- reading{err: err}
			return
		}
		done <- reading{string((*buf)[:n]), err}
	}()
	return done
}

// TestReadBuffersFitTheirBytes calls Read before anything arrives. Read must wait, and then return
// as many bytes as a buffer holds, or the error for each kind of end.
func TestReadBuffersFitTheirBytes(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, test := range []struct {
			name   string
			happen func(near, far net.Conn) error
			text   string
			err    error
		}{
			{"data", func(_, far net.Conn) error { _, err := far.Write([]byte("123456")); return err }, "1234", nil},
			{"closed by the other side", func(_, far net.Conn) error { return far.Close() }, "", io.EOF},
			{"closed", func(near, _ net.Conn) error { return near.Close() }, "", net.ErrClosed},
			{"deadline", func(near, _ net.Conn) error { return near.SetReadDeadline(time.Now()) }, "", os.ErrDeadlineExceeded},
		} {
			t.Run(network+", "+test.name, func(t *testing.T) {
				address := "127.0.0.1:0"
				if network == "unix" {
					address = filepath.Join(t.TempDir(), "s")
				}
				near, far := pair(t, network, address)
				r := NewReader(near, &short)
				if r == nil {
					t.Fatal("NewReader = nil; want a Reader")
				}
				done := start(r)
				select {
				case got := <-done:
					t.Fatalf("Read returned %+v before anything was sent; want it to wait", got)
				case <-time.After(10 * time.Millisecond):
				}
				if err := test.happen(near, far); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-done:
					if got.text != test.text || !errors.Is(got.err, test.err) {
						t.Errorf("Read = %q, %v; want %q, %v", got.text, got.err, test.text, test.err)
					}
				case <-time.After(time.Minute):
					t.Fatal("Read does not return within a minute; want it to")
				}
				if test.text == "" {
					return
				}
				if got := <-start(r); got.text != "56" || got.err != nil {
					t.Errorf("the second Read = %q, %v; want the rest", got.text, got.err)
				}
			})
		}
	}
}

// TestWaitingReadersKeepNoBuffer makes a hundred Readers wait for bytes. While they wait, they must
// leave their buffers in the pool, so that far fewer buffers are made.
func TestWaitingReadersKeepNoBuffer(t *testing.T) {
	const many = 100
	var made, tried atomic.Int32
	pool := sync.Pool{New: func() any { made.Add(1); b := make([]byte, 4); return &b }}
	var waiting []<-chan reading
	var ends []net.Conn
	for range many {
		near, far := pair(t, "tcp", "127.0.0.1:0")
		r := NewReader(near, &pool)
		try := r.try
		r.try = func(fd uintptr) bool {
			done := try(fd)
			tried.Add(1)
			return done
		}
		waiting, ends = append(waiting, start(r)), append(ends, far)
	}
	for end := time.Now().Add(time.Minute); tried.Load() < many; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d readers have tried to read after a minute; want all", tried.Load(), many)
		}
	}
	n := made.Load() // not 1, because a sync.Pool may drop buffers
	for i, done := range waiting {
		_ = ends[i].Close()
		if got := <-done; got.err != io.EOF {
			t.Errorf("Read of a closed connection = %+v; want its end", got)
		}
	}
	if n == 0 || n > many*3/4 {
		t.Errorf("%d buffers were made for %d waiting readers; want some, at most three quarters", n, many)
	}
}

// TestConnectionInMemoryHasNoReader calls NewReader with a connection in memory, which has no file
// descriptor. It must return nil.
func TestConnectionInMemoryHasNoReader(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if NewReader(near, &short) != nil {
		t.Error("NewReader accepts a pipe in memory; want nil")
	}
}

func TestDeepReturnsAfterItsFunction(t *testing.T) {
	called := false
	Deep(func() { called = true })
	if !called {
		t.Error("Deep returned before its function; want it after")
	}
}
