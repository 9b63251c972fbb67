package faultproxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ahprelay/test/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience limits the time for a step. In silence, a byte would arrive if nothing held
// it back.
const (
	patience = time.Minute
	silence  = 100 * time.Millisecond
)

// newEcho starts an echo server, and returns a proxy in front of it.
func newEcho(t *testing.T) *faultproxy.Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	p, err := faultproxy.New("", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		_ = l.Close()
		<-served
	})
	return p
}

// A peer is a connection through the proxy.
type peer struct {
	*net.TCPConn
	t  *testing.T
	in *bufio.Reader
}

func dial(t *testing.T, p *faultproxy.Proxy) *peer {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &peer{c.(*net.TCPConn), t, bufio.NewReader(c)}
}

func (c *peer) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *peer) wantLine(want string) {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if got, err := c.in.ReadString('\n'); err != nil || got != want+"\n" {
		c.t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

func (c *peer) wantSilence() {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(silence))
	if got, err := c.in.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("read %q, %v; want nothing", got, err)
	}
}

func (c *peer) wantEnd(want error) (read string) {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c.in)
	if !errors.Is(err, want) {
		c.t.Fatalf("connection ended with %v; want %v", err, want)
	}
	return string(b)
}

func TestCutConnectionsAreReset(t *testing.T) {
	p := newEcho(t)
	c := dial(t, p)
	c.say("hello")
	c.wantLine("hello")
	p.Cut()
	c.wantEnd(syscall.ECONNRESET)
	if again, err := net.Dial("tcp", p.Addr()); err == nil {
		_ = again.Close()
		t.Error("a connection was accepted while cut; want a refusal")
	}
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	c = dial(t, p)
	c.say("again")
	c.wantLine("again")
}

// TestHealWaitsForChildrenThatHaveTheListener cuts and heals a proxy while a child has
// not yet become its program. Until then, it has a copy of the closed listener.
func TestHealWaitsForChildrenThatHaveTheListener(t *testing.T) {
	p := newEcho(t)
	child, err := p.Listener().File()
	if err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.Lock() // held while a child starts
	p.Cut()
	healed := make(chan error)
	go func() { healed <- p.Heal() }()
	time.Sleep(silence) // without the wait, Heal fails in this time
	err = child.Close()
	syscall.ForkLock.Unlock()
	if err := errors.Join(err, <-healed); err != nil {
		t.Error(err)
	}
}

// TestFrozenBytesArriveLater freezes the proxy. Bytes on a present and on a new
// connection arrive after Heal.
func TestFrozenBytesArriveLater(t *testing.T) {
	p := newEcho(t)
	before := dial(t, p)
	before.say("1")
	before.wantLine("1")
	p.Freeze()
	after := dial(t, p)
	before.say("2")
	after.say("3")
	before.wantSilence()
	after.wantSilence()
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	before.wantLine("2")
	after.wantLine("3")
}

func TestOnlyOpenConnectionsFreeze(t *testing.T) {
	p := newEcho(t)
	before := dial(t, p)
	before.say("1")
	before.wantLine("1")
	p.FreezeOpen()
	before.say("2")
	after := dial(t, p)
	after.say("3")
	after.wantLine("3")
	before.wantSilence()
}

// The proxy resets a connection after 6 bytes, in the middle of a line. The client must
// not get the whole line, and a new connection must work.
func TestResetLetsAPartThrough(t *testing.T) {
	p := newEcho(t)
	c := dial(t, p)
	c.say("1")
	c.wantLine("1")
	p.ResetAfter(6)
	c.say("abcdefghi") // 10 bytes with the line feed
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if b, err := io.ReadAll(c.in); !errors.Is(err, syscall.ECONNRESET) || strings.Contains(string(b), "\n") {
		t.Errorf("read %q, %v; want at most a part of the line, and a reset", b, err)
	}
	dial(t, p).say("1")
}

// TestHalfCloseIsPassedOn closes a connection for writing at one end. The other end
// reads the end, and can still send.
func TestHalfCloseIsPassedOn(t *testing.T) {
	c := dial(t, newEcho(t))
	c.say("last")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := c.wantEnd(nil); got != "last\n" {
		t.Errorf("read %q; want the last line", got)
	}
}

// TestShapedBytesKeepTheirOrder sends lines through a slow network. They arrive later,
// and in the same order.
func TestShapedBytesKeepTheirOrder(t *testing.T) {
	p := newEcho(t)
	c := dial(t, p)
	p.Shape(faultproxy.Shape{Delay: 50 * time.Millisecond, Jitter: 50 * time.Millisecond})
	for i := range 20 {
		c.say(fmt.Sprint(i))
	}
	for i := range 20 {
		c.wantLine(fmt.Sprint(i))
	}
	p.Shape(faultproxy.Shape{Rate: 100 << 10})
	start := time.Now()
	c.say(strings.Repeat("x", 60<<10))
	c.wantLine(strings.Repeat("x", 60<<10))
	if took := time.Since(start); took < 300*time.Millisecond { // in each direction, the first 16 KiB pass at once
		t.Errorf("60 KiB at 100 KiB/s took %v; want at least 300 ms", took)
	}
}

// A proxy closes although its connection's end reads nothing.
func TestStuckProxyCloses(t *testing.T) {
	p := newEcho(t)
	c := dial(t, p)
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	for {
		if _, err := c.Write(make([]byte, 1<<20)); err != nil {
			break
		}
	}
	p.Close()
	if n := p.Conns(); n != 0 {
		t.Errorf("%d connections are open after Close; want 0", n)
	}
}
