package wire

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/test/testca"
)

// testPair returns a certificate for the loopback address.
func testPair(t *testing.T) tls.Certificate {
	t.Helper()
	certFile, keyFile, err := testca.WriteFilesFor(net.IPv4(127, 0, 0, 1), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// A TLS client pauses before it reads. The relay's write continues after a pause
// shorter than stall, and fails after a longer pause.
func TestStalledTLSWriteFails(t *testing.T) {
	pair := testPair(t)
	const stall = 10 * time.Second
	message := bytes.Repeat([]byte("x"), 100<<10)
	for _, test := range []struct {
		pause time.Duration
		ok    bool
	}{{stall * 9 / 10, true}, {stall * 11 / 10, false}} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			served := tls.Server(&pacedConn{Conn: here}, &tls.Config{Certificates: []tls.Certificate{pair}})
			client := tls.Client(there, &tls.Config{InsecureSkipVerify: true})
			shook := make(chan error, 1)
			go func() { shook <- client.Handshake() }()
			if err := errors.Join(served.Handshake(), <-shook); err != nil {
				t.Fatal(err)
			}
			conn := NewConn(t.Context(), served, stall)
			wrote := make(chan error, 1)
			go func() {
				_, err := conn.Write(message)
				wrote <- err
			}()
			time.Sleep(test.pause)
			go func() {
				_ = client.SetReadDeadline(time.Now().Add(time.Minute))
				got, _ := io.ReadAll(io.LimitReader(client, int64(len(message))))
				if test.ok && !bytes.Equal(got, message) {
					t.Errorf("client got %d bytes; want what was sent", len(got))
				}
			}()
			err := <-wrote
			switch {
			case test.ok && (err != nil || !conn.WaitedSince(time.Now().Add(-time.Minute)) || conn.Written.Load() < uint64(len(message))):
				t.Errorf("a write to a peer that pauses for %v: %v, waited %v, %d bytes written; want no error, a wait, and all bytes", test.pause, err, conn.waited.Get(), conn.Written.Load())
			case !test.ok && !errors.Is(err, os.ErrDeadlineExceeded):
				t.Errorf("a write to a peer that reads nothing ended after %v with %v; want an error that the peer takes nothing", test.pause, err)
			}
			_ = conn.Close()
			_ = client.Close()
		})
	}
}

// TestBlockedWriteRarelyWakes blocks a write for 10 s. The writer wakes about once a second, because thousands of
// clients may read nothing.
func TestBlockedWriteRarelyWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		counted := &countingConn{Conn: here}
		conn := NewConn(t.Context(), counted, time.Minute)
		wrote := make(chan error, 1)
		go func() {
			_, err := conn.Write([]byte("x"))
			wrote <- err
		}()
		time.Sleep(longWrite)
		if !conn.WaitedSince(time.Now().Add(-time.Minute)) {
			t.Errorf("after %v, a blocked write does not count as blocked", longWrite)
		}
		time.Sleep(10 * time.Second)
		if n := counted.writes.Load(); n > 11 {
			t.Errorf("a write that was blocked for 10 s tried %d times; want at most 11", n)
		}
		_, _ = io.ReadFull(there, make([]byte, 1))
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
}

// A countingConn counts Writes.
type countingConn struct {
	net.Conn
	writes atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// All TLS records of a Write up to WritePiece bytes take a single system call, and
// arrive unchanged.
func TestRecordsOfAWriteAreOneCall(t *testing.T) {
	pair := testPair(t)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, DynamicRecordSizingDisabled: true} // as the public listener has it
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			counted := &countingConn{Conn: here}
			served := tls.Server(&pacedConn{Conn: counted}, config)
			client := tls.Client(there, &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
			shook := make(chan error, 1)
			go func() { shook <- client.Handshake() }()
			if err := errors.Join(served.Handshake(), <-shook); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, served) }() // also reads TLS's own messages
			conn := NewConn(t.Context(), served, time.Minute)
			for _, size := range []int{1, recordSize, recordSize + 1, 3*recordSize - 1, WritePiece - 1, WritePiece, 2, WritePiece + 1} {
				message := make([]byte, size)
				_, _ = rand.Read(message)
				read := make(chan []byte, 1)
				go func() {
					got := make([]byte, size)
					n, _ := io.ReadFull(client, got)
					read <- got[:n]
				}()
				before := counted.writes.Load()
				if n, err := conn.Write(message); n != size || err != nil {
					t.Fatalf("Write of %d bytes = %d, %v; want all bytes", size, n, err)
				}
				if got := <-read; !bytes.Equal(got, message) {
					t.Errorf("of %d sent bytes, %d arrived, or they differ; want the same bytes", size, len(got))
				}
				if writes := counted.writes.Load() - before; writes != 1 && size <= WritePiece {
					t.Errorf("sending %d bytes took %d system calls; want 1", size, writes)
				}
			}
			// The close alert follows all records.
			go func() { _ = conn.Close() }()
			if n, err := client.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("Read at the end = %d, %v; want EOF", n, err)
			}
			_ = client.Close()
		})
	}
}

// TLS sends a record of its own between two records of a Write. The three keep their
// order, and none is held back.
func TestRecordOfTLSKeepsItsPlace(t *testing.T) {
	here, there := net.Pipe()
	conn := &pacedConn{Conn: here}
	conn.records.left.Store(2)
	got := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(there)
		got <- all
	}()
	for _, record := range []string{"first ", "own ", "second "} {
		if n, err := conn.Write([]byte(record)); n != len(record) || err != nil {
			t.Errorf("Write(%q) = %d, %v; want all bytes and no error", record, n, err)
		}
	}
	_ = here.Close()
	if all := string(<-got); all != "first own second " {
		t.Errorf("the bytes %q were written; want first, own and second", all)
	}
}
