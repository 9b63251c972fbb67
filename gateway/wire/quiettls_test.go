package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// A TLS client sends records with any size, in pieces with any size. The relay reads
// them as sent. A deadline or the connection's end ends a read that waits.
func TestQuietTLSReadsAllRecords(t *testing.T) {
	pair := testPair(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	far, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	served := tls.Server(&pacedConn{Conn: near}, &tls.Config{Certificates: []tls.Certificate{pair}})
	client := tls.Client(&choppy{Conn: far}, &tls.Config{InsecureSkipVerify: true})
	sent := make([]byte, 300_000)
	for i := range sent {
		sent[i] = byte(i * i >> 3)
	}
	wrote := make(chan error, 1)
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(40_000))
			if _, err := client.Write(rest[:n]); err != nil {
				wrote <- err
				return
			}
			rest = rest[n:]
		}
		wrote <- nil
	}()
	if err := served.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := NewConn(context.Background(), served, time.Minute)
	conn.WaitQuietly()
	if conn.quiet == nil {
		t.Skip("this system cannot wait without a buffer")
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("ReadFull: %v; equal to the sent bytes: %v; want all of them", err, bytes.Equal(got, sent))
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}

	// A deadline, the peer's close and a local close end the wait.
	if err := conn.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read beyond its deadline = %v; want ErrDeadlineExceeded", err)
	}
	ended := make(chan error)
	other, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan error, 1)
	go func() { begun <- tls.Client(other, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	served = tls.Server(&pacedConn{Conn: near}, &tls.Config{Certificates: []tls.Certificate{pair}})
	if err := errors.Join(served.HandshakeContext(t.Context()), <-begun); err != nil {
		t.Fatal(err)
	}
	second := NewConn(context.Background(), served, time.Minute)
	second.WaitQuietly()
	go func() {
		_, err := second.Read(make([]byte, 1))
		ended <- err
	}()
	_ = other.Close()
	if err := <-ended; err == nil {
		t.Error("Read after the peer has closed returns no error; want one")
	}
	_, _ = second.Close(), conn.Close()
	if _, err := conn.Read(got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read of a closed connection = %v; want net.ErrClosed", err)
	}
	_ = far.Close()
}

// A choppy connection writes in pieces of random size.
type choppy struct{ net.Conn }

// Write implements [net.Conn].
func (c *choppy) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = c.Conn.Write(p[n:min(len(p), n+1+rand.IntN(3000))])
		n += m
	}
	return n, err
}
