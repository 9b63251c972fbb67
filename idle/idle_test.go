package idle

import (
	"net"
	"path/filepath"
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

// waiting waits in the background, and returns what tells of the end.
func waiting(w *Waiter) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		w.Wait()
		close(ended)
	}()
	return ended
}

// TestWait waits for a byte, which is still there, and for each kind of end.
func TestWait(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, test := range []struct {
			name   string
			happen func(near, far net.Conn) error
		}{
			{"data", func(_, far net.Conn) error { _, err := far.Write([]byte("x")); return err }},
			{"closed by the other side", func(_, far net.Conn) error { return far.Close() }},
			{"closed", func(near, _ net.Conn) error { return near.Close() }},
			{"deadline", func(near, _ net.Conn) error { return near.SetReadDeadline(time.Now()) }},
		} {
			t.Run(network+", "+test.name, func(t *testing.T) {
				address := "127.0.0.1:0"
				if network == "unix" {
					address = filepath.Join(t.TempDir(), "s")
				}
				near, far := pair(t, network, address)
				w := NewWaiter(near)
				if w == nil {
					t.Fatal("no Waiter")
				}
				ended := waiting(w)
				select {
				case <-ended:
					t.Fatal("Wait returned before anything happened")
				case <-time.After(10 * time.Millisecond):
				}
				if err := test.happen(near, far); err != nil {
					t.Fatal(err)
				}
				select {
				case <-ended:
				case <-time.After(20 * time.Second):
					t.Fatal("Wait goes on")
				}
				w.Wait() // at once, as long as that is so
				b := make([]byte, 2)
				if n, err := near.Read(b); (n == 1) != (test.name == "data") || (err == nil) != (n == 1) {
					t.Errorf("read %d bytes, %v", n, err)
				}
			})
		}
	}
}

// TestNoWaiter is of a connection in memory.
func TestNoWaiter(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if NewWaiter(near) != nil {
		t.Error("a Waiter for a pipe in memory")
	}
}

func TestDeep(t *testing.T) {
	called := false
	Deep(func() { called = true })
	if !called {
		t.Error("Deep returned before its function did")
	}
}
