package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// aliveConn returns a Conn over one end of a network pair, and the far end. The Conn probes a
// silent far end: a probe calls asked, writes a byte to the far end, and waits for the answer "!".
// The channel ended gets the error with which reading ends.
func aliveConn(t *testing.T, asked func()) (c *Conn, ended <-chan error, far net.Conn) {
	t.Helper()
	near, far := livePair(t)
	c = newConn(Events{})
	c.online.Store(true)
	answers := make(chan struct{}, 100)
	c.line.Store(&line{netConn: near, ask: func(context.Context) error {
		asked()
		_, err := near.Write([]byte("?"))
		<-answers
		return err
	}})
	done := make(chan error, 1)
	go func() {
		buf := make([]byte, 10)
		for {
			if _, err := near.Read(buf); err != nil {
				close(answers)
				done <- err
				return
			}
			if buf[0] == '!' {
				answers <- struct{}{}
			}
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	c.running.Go(func() { c.askWhenSilent(ctx) })
	t.Cleanup(func() { cancel(); near.Close(); c.running.Wait() })
	return c, done, far
}

// TestSilentLineIsAsked runs a peer that answers probes for a minute and then no more. This side
// writes nothing else, so the peer must be probed every 8 s (restAfter), and its connection end
// idleTimeout after the last answer at the latest.
func TestSilentLineIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asks atomic.Int64
		_, ended, far := aliveConn(t, func() { asks.Add(1) })
		go func() {
			buf := make([]byte, 10)
			for start := time.Now(); time.Since(start) < time.Minute; {
				if _, err := far.Read(buf); err != nil {
					return
				}
				_, _ = far.Write([]byte("!"))
			}
			_, _ = far.Read(buf) // reads the next probe and does not answer
		}()
		start := time.Now()
		err := <-ended
		lasted := time.Since(start)
		if !errors.Is(err, os.ErrDeadlineExceeded) || lasted < time.Minute || lasted > time.Minute+restAfter+idleTimeout {
			t.Errorf("the connection ended after %v with %v; want it given up soon after its peer stops answering", lasted, err)
		}
		if most := int64(lasted/restAfter) + 1; asks.Load() > most || asks.Load() < most-1 {
			t.Errorf("the silent peer was probed %d times in %v; want a probe every %v", asks.Load(), lasted, restAfter)
		}
	})
}

// TestUnansweredWriteIsAskedSoon writes to a silent peer at any time since it was last heard. The
// peer must be probed within 4 s (askAfter) of the write, and the connection end answerTime later.
func TestUnansweredWriteIsAskedSoon(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Second, askAfter - time.Millisecond, askAfter + time.Millisecond, restAfter - time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Pointer[time.Time]
			c, ended, far := aliveConn(t, func() { now := time.Now(); asked.Store(&now) })
			if _, err := far.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, far) // answers nothing
			time.Sleep(wait)
			synctest.Wait()
			wrote := time.Now()
			if _, err := c.line.Load().Write([]byte("y")); err != nil {
				t.Fatal(err)
			}
			err := <-ended
			probed := asked.Load()
			if probed == nil || probed.Sub(wrote) > askAfter || time.Since(*probed) != answerTime || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a write %v after the peer was heard: probed at %v, and ended %v after the write with %v; want a probe within %v of the write, and the end %v later", wait, probed, time.Since(wrote), err, askAfter, answerTime)
			}
		})
	}
}

// TestBusyLineIsNotAsked runs a peer that sends a byte just before each probe is due, and then
// falls silent. It must not be probed while it sends, then once, and its connection must end after
// idleTimeout.
func TestBusyLineIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asks atomic.Int64
		_, ended, far := aliveConn(t, func() { asks.Add(1) })
		var spoke time.Time
		for range 20 {
			time.Sleep(restAfter - time.Millisecond)
			spoke = time.Now()
			if _, err := far.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if asks.Load() > 0 {
			t.Errorf("a busy connection is probed %d times; want 0", asks.Load())
		}
		go func() { _, _ = far.Read(make([]byte, 10)) }() // reads the probe and does not answer
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(spoke) != idleTimeout || asks.Load() != 1 {
			t.Errorf("the connection ended %v after its last bytes, after %d probes, with %v; want it after %v, and one probe", time.Since(spoke), asks.Load(), err, idleTimeout)
		}
	})
}
