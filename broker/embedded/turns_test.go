package embedded

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/broker"
)

// A slowServer reads like the NATS server: it handles the bytes of a read before it reads again.
type slowServer struct {
	conn net.Conn
	each time.Duration // time to handle a read of more than one byte
}

// serve reads until the other side closes. It writes what it reads to got, and calls begin and end
// around handling it.
func (s slowServer) serve(begin, end func(), got io.Writer) {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.conn.Read(buf)
		if err != nil {
			return
		}
		begin()
		_, _ = got.Write(buf[:n])
		if n > 1 {
			time.Sleep(s.each)
		}
		end()
	}
}

// A taken collects all bytes that a server has read.
type taken struct {
	mu   sync.Mutex
	text []byte
}

func (s *taken) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p...)
	return len(p), nil
}

func (s *taken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text)
}

// TestHostAgentsTakeTurns floods a server from many connections of a host-agent. The server must
// handle one connection at a time, and a message from a different tenant must wait for about one
// turn. All bytes must arrive unchanged.
func TestHostAgentsTakeTurns(t *testing.T) {
	const conns, chunks, work = 8, 50, 500 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var mu sync.Mutex
		busy, most := 0, 0
		begin := func() { mu.Lock(); busy++; most = max(most, busy); mu.Unlock() }
		end := func() { mu.Lock(); busy--; mu.Unlock() }
		var wg sync.WaitGroup
		join := func(tenant string, send func(w io.Writer)) (got *taken) {
			here, there := net.Pipe()
			got = &taken{}
			wg.Go(func() { slowServer{there, work}.serve(begin, end, got) })
			w := turns.writer(t.Context(), partyOf(tenant, "h"), here)
			wg.Go(func() {
				defer here.Close()
				send(w)
			})
			return got
		}
		var all []*taken
		for range conns {
			all = append(all, join("busy", func(w io.Writer) {
				for i := range chunks {
					if n, err := fmt.Fprintf(w, "message %d\n", i); err != nil || n == 0 {
						t.Errorf("Fprintf = %d, %v; want the message written", n, err)
					}
				}
			}))
		}
		time.Sleep(10 * work)
		mu.Lock()
		most = 0 // not counted: the first messages needed no turn
		mu.Unlock()
		came := time.Now()
		other := join("quiet", func(w io.Writer) { _, _ = w.Write([]byte("hello")) })
		for other.String() != "hello" {
			time.Sleep(work / 10)
			synctest.Wait()
		}
		if waited := time.Since(came); waited > 3*work {
			t.Errorf("another tenant's message waited %v; want at most three turns of %v", waited, work)
		}
		wg.Wait()
		if most > 3 { // a turn may begin before the server has handled the previous ones
			t.Errorf("%d host-agents' messages were handled at a time; want at most 3", most)
		}
		want := ""
		for i := range chunks {
			want += fmt.Sprintf("message %d\n", i)
		}
		for i, got := range all {
			if got.String() != want {
				t.Errorf("connection %d: %d bytes have arrived; want %d", i, len(got.String()), len(want))
			}
		}
	})
}

// TestTurnsEndInTime makes 20 host-agents write to connections that the server does not read. The
// write of a further host-agent must succeed after at most longestTurn for each of them.
func TestTurnsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var stuck []net.Conn
		var wg sync.WaitGroup
		for i := range 20 {
			here, _ := net.Pipe()
			stuck = append(stuck, here)
			w := turns.writer(t.Context(), partyOf(fmt.Sprint(i), "h"), here)
			wg.Go(func() { _, _ = w.Write([]byte("stuck")) })
		}
		synctest.Wait()
		here, there := net.Pipe()
		got := make([]byte, 5)
		began := time.Now()
		wg.Go(func() { _, _ = io.ReadFull(there, got) })
		if _, err := turns.writer(t.Context(), partyOf("quiet", "h"), here).Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > time.Duration(len(stuck)+1)*longestTurn {
			t.Errorf("a host-agent waited %v behind %d stuck ones; want at most one turn each", waited, len(stuck))
		}
		for _, conn := range stuck {
			_ = conn.Close()
		}
		wg.Wait()
		if string(got) != "hello" {
			t.Errorf("the server got %q; want hello", got)
		}
	})
}

// TestAloneTakesNoTurn writes as a single host-agent: this must not allocate, and take no turn. If
// another waits for a turn, enter must return false, so that both take turns.
func TestAloneTakesNoTurn(t *testing.T) {
	turns := newTurns()
	w := turns.writer(t.Context(), partyOf("acme", "laptop"), io.Discard)
	message := []byte("hello")
	if n := testing.AllocsPerRun(100, func() { _, _ = w.Write(message) }); n > 0 {
		t.Errorf("a write allocates %v times; want 0", n)
	}
	for range turns.atOnce {
		if !turns.enter() {
			t.Fatal("enter = false while fewer than atOnce write; want true")
		}
	}
	if turns.enter() {
		t.Errorf("enter = true although %d writes without a turn are running; want false", turns.atOnce)
	}
	for range turns.atOnce {
		turns.leave()
	}
	turns.asked.Add(1)
	if turns.enter() {
		t.Error("enter = true while a host-agent waits for a turn; want false")
	}
	turns.asked.Add(-1)
	if !turns.enter() {
		t.Error("enter = false after all writes have ended; want true")
	}
}

// A byteCount counts the bytes written to it.
type byteCount struct{ atomic.Int64 }

func (c *byteCount) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

// TestFloodRestsBesideAnotherTenant floods a server from eight connections of a host-agent, while a
// different tenant sends a message every 20 ms. The flood must get its share of the server's time
// and no more. The other tenant must hardly wait.
func TestFloodRestsBesideAnotherTenant(t *testing.T) {
	const conns, work, d = 8, 500 * time.Microsecond, 4 * time.Second
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var wg sync.WaitGroup
		join := func(tenant string, each time.Duration, got io.Writer) *turnWriter {
			here, there := net.Pipe()
			t.Cleanup(func() { _ = here.Close() })
			wg.Go(func() { slowServer{there, each}.serve(func() {}, func() {}, got) })
			return turns.writer(t.Context(), partyOf(tenant, "h"), here)
		}
		var bytes byteCount
		for range conns {
			w := join("busy", work, &bytes)
			wg.Go(func() {
				defer w.to.(net.Conn).Close()
				time.Sleep(d / 4) // by then, the other tenant is active
				for end := time.Now().Add(d); time.Now().Before(end); {
					_, _ = w.Write(make([]byte, broker.PumpBuffer))
				}
			})
		}
		quiet := join("quiet", 0, io.Discard)
		longest := time.Duration(0)
		for end := time.Now().Add(d + d/4); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			began := time.Now()
			_, _ = quiet.Write([]byte("hello"))
			longest = max(longest, time.Since(began))
		}
		_ = quiet.to.(net.Conn).Close()
		wg.Wait()
		share := hostShare * float64(runtime.GOMAXPROCS(0))
		worked := time.Duration(bytes.Load()/broker.PumpBuffer) * work
		if got := float64(worked) / float64(d); got > 1.2*share || got < 0.8*share {
			t.Errorf("the server worked for %.2f of the time on the messages of the busy tenant; want %.2f", got, share)
		}
		if longest > 2*longestTurn {
			t.Errorf("a message of the other tenant took %v; want at most two turns", longest)
		}
	})
}

// TestRestEndsWithTheConnection closes a connection while its host-agent has to rest. Its write
// must return at once.
func TestRestEndsWithTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		here, there := net.Pipe()
		defer there.Close()
		ctx, cancel := context.WithCancel(t.Context())
		conn := turnConn{here, turns.writer(ctx, partyOf("busy", "h"), here), cancel}
		go func() { _, _ = io.Copy(io.Discard, there) }()
		for range 3 {
			turns.shares.Spend("quiet", time.Microsecond)
			_, _ = conn.Write([]byte("message"))
			time.Sleep(time.Millisecond)
		}
		for range 100 {
			turns.shares.Charge("busy", longestTurn)
		}
		began := time.Now()
		time.AfterFunc(time.Millisecond, func() { _ = conn.Close() })
		_, _ = conn.Write([]byte("message"))
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("the write ended after %v; want it to end with the connection", took)
		}
	})
}

// TestTenantPaysForWhatTheRelayHears makes a relay spend time on a tenant's messages. The tenant's
// host-agent must rest for it, and no other tenant's.
func TestTenantPaysForWhatTheRelayHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		here, there := net.Pipe()
		defer here.Close()
		heard := &heardConn{Conn: there, tenant: "busy", shares: turns.shares}
		for range 3 {
			turns.shares.Spend("quiet", time.Microsecond)
			turns.shares.Spend("busy", time.Microsecond)
			time.Sleep(time.Millisecond)
		}
		go func() { _, _ = here.Write(make([]byte, 100)) }()
		for range 100 {
			_, _ = heard.Read(make([]byte, 1))
			time.Sleep(longestTurn)
		}
		if rest := turns.shares.Spend("busy", time.Microsecond); rest == 0 {
			t.Error("the busy tenant need not rest; want a rest")
		}
		if rest := turns.shares.Spend("quiet", time.Microsecond); rest > 0 {
			t.Errorf("the quiet tenant must rest for %v; want 0", rest)
		}
	})
}
