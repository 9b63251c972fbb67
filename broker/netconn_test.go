package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// livePair returns a netConn whose handshake is over, and the far end of its connection.
func livePair(t *testing.T) (*netConn, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	c, err := newNetConn(t.Context(), near, DialTimeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); far.Close() })
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	return c, far
}

func TestReadIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := livePair(t)
		go func() {
			for range 3 { // each byte comes just before the idle timeout
				time.Sleep(idleTimeout - time.Millisecond)
				far.Write([]byte("x"))
			}
		}()
		start := time.Now()
		buf := make([]byte, 10)
		for range 3 {
			if n, err := c.Read(buf); n != 1 || err != nil {
				t.Fatalf("Read = %d, %v; want 1 byte", n, err)
			}
		}
		_, err := c.Read(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "nothing received for 10.5s") {
			t.Errorf("Read = %v; want nothing received", err)
		}
		if got, want := time.Since(start), 3*(idleTimeout-time.Millisecond)+idleTimeout; got != want {
			t.Errorf("Read gave the silent connection up after %v; want %v", got, want)
		}
		if _, err := far.Write([]byte("x")); err == nil {
			t.Error("the connection is open after the idle timeout; want it closed")
		}
	})
}

// A pausedConn delivers its bytes only to the second Read: the first one has waited while the
// process was paused, and its deadline has passed.
type pausedConn struct {
	net.Conn
	reads int
}

// Read implements [net.Conn].
func (c *pausedConn) Read(p []byte) (int, error) {
	if c.reads++; c.reads == 1 {
		return 0, os.ErrDeadlineExceeded
	}
	return copy(p, "x"), nil
}

// TestPauseOfTheProcessIsNoSilence pauses a process for longer than the idle timeout. Bytes that
// have arrived meanwhile must be read, and the connection must stay open.
func TestPauseOfTheProcessIsNoSilence(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c, err := newNetConn(t.Context(), &pausedConn{Conn: near}, DialTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("Read after a pause of the process = %d, %v; want the byte that has arrived", n, err)
	}
}

// TestReadBeganInHandshake calls Read during the handshake, which then ends. The Read must end with
// the idle timeout.
func TestReadBeganInHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c, err := newNetConn(t.Context(), near, DialTimeout)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != idleTimeout {
			t.Errorf("Read = %v after %v; want the idle timeout", err, time.Since(start))
		}
	})
}

func TestWriteNeedsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := livePair(t)
		go func() {
			for range 3 { // each piece is taken just before the write timeout
				time.Sleep(writeTimeout - time.Millisecond)
				io.ReadFull(far, make([]byte, writePiece))
			}
		}()
		start := time.Now()
		// netConn must ignore this deadline, which the NATS library sets for the whole write.
		if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Write(make([]byte, 5*writePiece))
		if n != 3*writePiece || !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "nothing sent for 5s") {
			t.Errorf("Write = %d, %v; want three pieces and a timeout", n, err)
		}
		if got, want := time.Since(start), 3*(writeTimeout-time.Millisecond)+writeTimeout; got != want {
			t.Errorf("Write gave the stalled connection up after %v; want %v", got, want)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Read after a failed Write = %v; want it closed", err)
		}
	})
}

func TestHandshakeHasDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c, err := newNetConn(t.Context(), near, DialTimeout)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != DialTimeout {
			t.Errorf("Read = %v after %v; want a timeout after %v", err, time.Since(start), DialTimeout)
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(start) != time.Second {
			t.Errorf("Read = %v after %v; want a timeout after 1s", err, time.Since(start))
		}
		if err := c.SetDeadline(time.Now().Add(DialTimeout)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err == nil {
			t.Error("Write to a server that never answers succeeded; want an error")
		}
	})
}

func TestNetConnEndsWithLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		near, far := net.Pipe()
		defer far.Close()
		c, err := newNetConn(life, near, DialTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, end)
		start := time.Now()
		if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(start) != time.Second {
			t.Errorf("Read = %v after %v; want an end after 1s", err, time.Since(start))
		}
		end()
	})
}

func TestRetryDelayHasASpreadAndACeiling(t *testing.T) {
	for attempt := 1; attempt < 100; attempt++ {
		least, most := time.Hour, time.Duration(0)
		for range 200 {
			d := RetryDelay(attempt)
			least, most = min(least, d), max(most, d)
		}
		ceiling := min(retryFirst<<min(attempt-1, 20), retryCeiling)
		if least < retryFloor || most > ceiling || most-least < ceiling/4 {
			t.Errorf("attempt %d waits %v to %v; want a spread up to %v", attempt, least, most, ceiling)
		}
	}
}

// TestRetriesAreSpread simulates a thousand host-agents that lose a relay at once, for a short or
// long time. They must not all return at once: in any 100 ms, at most the given number may.
func TestRetriesAreSpread(t *testing.T) {
	const agents, slot = 1000, 100 * time.Millisecond
	for _, test := range []struct {
		outage time.Duration
		most   int
	}{
		{0, 380}, // 267 on average
		{200 * time.Millisecond, 380},
		{time.Second, 280},
		{3 * time.Second, 280},
		{14 * time.Second, 280},
		{time.Hour, 100},
	} {
		back := make([]int, 1+retryCeiling/slot)
		for range agents {
			var at time.Duration
			most := quickCeiling
			for attempt := 1; at == 0 || at < test.outage; attempt++ {
				if at > quickTime {
					most = retryCeiling
				}
				at += delayUpTo(attempt, most)
			}
			if late := at - test.outage; late > most {
				t.Fatalf("back %v after an outage of %v; want at most %v", late, test.outage, most)
			}
			back[(at-test.outage)/slot]++
		}
		peak := slices.Max(back)
		t.Logf("outage of %v: at most %d are back in %v", test.outage, peak, slot)
		if peak > test.most {
			t.Errorf("after an outage of %v, %d host-agents reconnect within %v; want at most %d", test.outage, peak, slot, test.most)
		}
	}
}
