package test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/hostagent"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// note returns a notification on a channel, with the number n and size bytes of
// padding.
func note(channel string, n, size int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"x/y","params":{"channel":%q,"n":%d,"pad":"%s"}}`, channel, n, strings.Repeat("x", size))
}

// A client has a connection with 2 MB/s. The host sends it 12 MiB, which takes longer
// than the stall limit and delays the client's answers to pings. The relay must not
// close the client, and the client receives everything.
func TestSnapshotOverSlowLine(t *testing.T) {
	want := []string{`{"jsonrpc":"2.0","id":1,"result":null}`}
	for i, size := range []int{100, 12<<20 - 200, 100, 1 << 20, 100} {
		want = append(want, note("ahp-session:/1", i, size))
	}
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{Upstream: host.server.URL(), Relay: gateway.RelayConfig{
		Gateway: gateway.Config{Stall: 3 * time.Second, Ping: time.Second},
	}})
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*stepTime)
	defer cancel()
	slow := &line{rate: 2 << 20}
	ws, _, err := websocket.Dial(ctx, s.URL(stack.Host)+"?tkn="+token, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: slow.dial, DisableKeepAlives: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(-1)
	greeting := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"slow"}}`
	if err := ws.Write(ctx, websocket.MessageText, []byte(greeting)); err != nil {
		t.Fatal(err)
	}
	conn, said := host.conn("slow", 0), make(chan error, 1)
	go func() {
		for _, m := range want[1:] {
			if err := conn.say(m); err != nil {
				said <- err
				return
			}
		}
		said <- nil
	}()
	for i, m := range want {
		_, got, err := ws.Read(ctx)
		if err != nil || string(got) != m {
			t.Fatalf("message %d has %d bytes, %v; want %d: %.300s", i, len(got), err, len(m), got)
		}
	}
	if err := <-said; err != nil {
		t.Errorf("the host's messages: %v; want no error", err)
	}
}

// One viewer stops reading a chat. The relay closes it, and the host's connection for
// it ends. All other viewers receive every message.
func TestStalledViewerCostsNothing(t *testing.T) {
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{Upstream: host.server.URL(), Relay: gateway.RelayConfig{Gateway: gateway.Config{Stall: 2 * time.Second}}})
	good := []*refclient.Client{greet(t, s, stack.Host, "a", nil, nil), greet(t, s, stack.Host, "b", nil, nil)}
	var network line
	stalled := greet(t, s, stack.Host, "stalled", &network, nil)
	conns := []*scriptedConn{host.conn("a", 0), host.conn("b", 0), host.conn("stalled", 0)}
	thaw := network.freeze()
	defer thaw()
	gone := false
	const messages, size, ahead = 500, 20 << 10, 100
	ctx, cancel := context.WithTimeout(t.Context(), 4*stepTime)
	defer cancel()
	for i := range messages {
		m := note("ahp-session:/1", i, size)
		for j, c := range conns {
			if err := c.say(m); err != nil && j < len(good) {
				t.Fatal(err)
			}
		}
		if i%ahead != ahead-1 {
			continue
		}
		for _, c := range good { // the host waits here, so a slow machine does not make these clients stall
			last := fmt.Sprintf(`"n":%d,`, i)
			if _, _, err := c.WaitAfter(ctx, i+2-ahead, func(frame []byte) bool { return strings.Contains(string(frame), last) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range good {
		frames := c.Frames()[1:] // without the answer to initialize
		for n, frame := range frames {
			if !strings.Contains(string(frame), fmt.Sprintf(`"n":%d,`, n)) {
				t.Fatalf("client %d: the message at %d is %.100s; want the message with that number", i, n, frame)
			}
		}
		if len(frames) != messages {
			t.Errorf("client %d got %d messages; want %d", i, len(frames), messages)
		}
	}
	select {
	case <-conns[2].done:
		gone = true
	case <-time.After(2 * stepTime):
	}
	if !gone {
		t.Error("the host has the connection of the client that reads nothing; want it closed")
	}
	thaw()
	<-stalled.Done()
	for _, c := range good {
		if _, err := c.Call(t.Context(), "ping", map[string]string{"channel": "ahp-root://"}); err != nil {
			t.Errorf("ping by a client that reads: %v; want an answer", err)
		}
	}
}

// A client connects again while its former connection is frozen, as a phone does on a
// new network. The relay closes the frozen connection. It keeps a live connection with
// the same clientId.
func TestRoamedClientReplacesItsFrozenConnection(t *testing.T) {
	t.Parallel()
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{Upstream: host.server.URL()})
	var mobile line
	greet(t, s, stack.Host, "phone", &mobile, nil)
	old := host.conn("phone", 0) // the host has this connection before the next
	tab := greet(t, s, stack.Host, "phone", nil, nil)
	twin := host.conn("phone", 1)
	time.Sleep(4 * time.Second) // meanwhile the relay pings both connections, and both answer
	defer mobile.freeze()()
	now := greet(t, s, stack.Host, "phone", nil, nil)
	select {
	case <-old.done:
	case <-time.After(stepTime):
		t.Error("the frozen connection is open at the host; want it closed")
	}
	for what, conn := range map[string]*scriptedConn{"its other connection": twin, "the new one": host.conn("phone", 2)} {
		select {
		case <-conn.done:
			t.Errorf("the connection (%s) was closed; want it open", what)
		default:
		}
	}
	for _, c := range []*refclient.Client{tab, now} {
		if _, err := c.Call(t.Context(), "ping", map[string]string{"channel": "ahp-root://"}); err != nil {
			t.Error(err)
		}
	}
}

// startHost starts a host-agent for a second host at a stack's relay. It waits until
// the host is online.
func startHost(t *testing.T, s *stack.Stack, name, url string) {
	t.Helper()
	token, err := s.HostToken(name)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{s.Relay.URL()}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: url},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = agent.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	clientToken, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(stepTime); ; time.Sleep(5 * time.Millisecond) {
		info, err := procs.GetJSON[hostsapi.Info](t.Context(), s.Relay.URL()+"/api/hosts/"+name, clientToken)
		if err == nil && info.State == "online" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the host %s is %s, %v; want it online in time", name, info.State, err)
		}
	}
}

// roundTrips sends n pings from a client to its host, and returns their durations,
// sorted.
func roundTrips(t *testing.T, c *refclient.Client, n int) (took []time.Duration) {
	t.Helper()
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		began := time.Now()
		_, err := c.Call(ctx, "ping", map[string]string{"channel": "ahp-root://"})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took
}

// A host stops reading, and its client sends on. The relay must stop accepting the
// client's messages, and must not delay a client of a second host. When the host reads
// again, it receives every message.
func TestHungHostStallsOnlyItsClients(t *testing.T) {
	hung, other := newScriptedHost(t), newScriptedHost(t)
	s := startStack(t, stack.Config{
		Upstream: hung.server.URL(),
		Agent:    hostagent.Config{Upstream: hostagent.Upstream{URL: hung.server.URL()}}, // without the tap, which would hold as many bytes again
	})
	startHost(t, s, "desktop", other.server.URL())
	bystander := greet(t, s, "desktop", "b", nil, nil)
	usual := roundTrips(t, bystander, 50)
	const clients, messages, size = 1, 400, 100 << 10 // 40 MB; the kernels hold about 20 MiB, 32 at most, on either side of the relay
	var unblock []func()
	var writers sync.WaitGroup
	var sent atomic.Int64
	for i := range clients {
		id := fmt.Sprint("c", i)
		c := greet(t, s, stack.Host, id, nil, nil)
		unblock = append(unblock, hung.conn(id, 0).block())
		defer unblock[i]()
		writers.Go(func() {
			for n := range messages {
				if c.SendRaw([]byte(note("ahp-session:/1", n, size))) != nil {
					return
				}
				sent.Add(1)
			}
		})
	}
	meanwhile := roundTrips(t, bystander, 200)
	t.Logf("round trip of the other host's client: median %v, %v before", meanwhile[100], usual[25])
	if meanwhile[100] > 5*time.Second { // a slow machine stays below this
		t.Errorf("the median round trip of the other host's client is %v; want at most 5 s", meanwhile[100])
	}
	for before := int64(-1); before < sent.Load(); time.Sleep(500 * time.Millisecond) {
		before = sent.Load() // repeats until the relay accepts no more
	}
	if n := sent.Load(); n == clients*messages {
		t.Error("the relay accepts all messages for a host that reads nothing; want it to stop")
	}
	for _, f := range unblock {
		f()
	}
	writers.Wait()
	for i := range clients {
		conn := hung.conn(fmt.Sprint("c", i), 0)
		for deadline := time.Now().Add(2 * stepTime); len(conn.messages()) < messages+1 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		got := conn.messages()[1:]
		if len(got) != messages {
			t.Fatalf("host got %d messages; want %d", len(got), messages)
		}
		for n, m := range got {
			if !strings.Contains(m, fmt.Sprintf(`"n":%d,`, n)) {
				t.Fatalf("the message at %d is %.100s; want the message with that number", n, m)
			}
		}
	}
}

// A host floods its clients, and some of them read nothing. A client of a second host
// must not wait for that.
func TestFloodingHostDelaysNoOtherHost(t *testing.T) {
	flooding, other := newScriptedHost(t), newScriptedHost(t)
	s := startStack(t, stack.Config{Upstream: flooding.server.URL(), Relay: gateway.RelayConfig{Gateway: gateway.Config{Stall: 2 * time.Second}}})
	startHost(t, s, "desktop", other.server.URL())
	bystander := greet(t, s, "desktop", "b", nil, nil)
	usual := roundTrips(t, bystander, 50)
	var stop atomic.Bool
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop.Store(true)
	var deaf []*scriptedConn
	for i := range 2 {
		network, id := new(line), fmt.Sprint("c", i)
		greet(t, s, stack.Host, id, network, func([]byte) {})
		conn := flooding.conn(id, 0)
		if i%2 == 0 {
			defer network.freeze()()
			deaf = append(deaf, conn)
		}
		writers.Go(func() {
			for n := 0; !stop.Load(); n++ {
				if conn.say(note("ahp-session:/1", n, 32<<10)) != nil {
					return
				}
				time.Sleep(4 * time.Millisecond) // leaves processor time for other processes
			}
		})
	}
	meanwhile := roundTrips(t, bystander, 50)
	for _, conn := range deaf { // measures until the relay has closed the clients that read nothing
		for open := true; open; {
			select {
			case <-conn.done:
				open = false
			default:
				meanwhile = append(meanwhile, roundTrips(t, bystander, 1)...)
			}
		}
	}
	slices.Sort(meanwhile)
	t.Logf("round trip of the other host's client: median of %d %v, most %v; median %v before", len(meanwhile), meanwhile[len(meanwhile)/2], slices.Max(meanwhile), usual[25])
	if median := meanwhile[len(meanwhile)/2]; median > 5*time.Second { // a slow machine stays below this
		t.Errorf("the median round trip of the other host's client is %v; want at most 5 s", median)
	}
}

// TestAgentStopsBehindWhatTheHostSaid stops a host-agent that has queued many messages
// for a slow client. The client receives all of them, and then the reason.
func TestAgentStopsBehindWhatTheHostSaid(t *testing.T) {
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{
		Upstream: host.server.URL(),
		Agent:    hostagent.Config{Upstream: hostagent.Upstream{URL: host.server.URL()}}, // without the tap, which would answer pings itself
	})
	var got atomic.Int64
	var network line
	c := greet(t, s, stack.Host, "a", &network, func([]byte) { got.Add(1) })
	conn := host.conn("a", 0)
	thaw := network.freeze()
	defer thaw()
	const messages = 25 // a busy machine, too, delivers them before the host-agent gives up
	for i := range messages {
		if err := conn.say(note("ahp-session:/1", i, 100<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.ws.Ping(t.Context()); err != nil { // the answer shows that the host-agent has read all messages
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.StopAgent() }()
	time.Sleep(500 * time.Millisecond)
	thaw()
	if err := <-ended; err != nil {
		t.Errorf("the host-agent ended with %v; want no error", err)
	}
	wantClosed(t, c, ahp.CloseHostOffline, "host offline: host-agent stopped")
	if n := got.Load(); n != 1+messages {
		t.Errorf("client got %d messages; want %d", n, 1+messages)
	}
}

// A host sends each client more bytes at once than the host-agent may queue: to a fast
// client, to a slow client, and to a client that pauses. Every client must receive
// every message.
func TestFastHostReachesEveryClient(t *testing.T) {
	for name, much := range map[string]struct{ messages, size int }{
		"very many": {4_000, 1 << 10},
		"many":      {40, 100 << 10},
		"large":     {8, 512<<10 - 1<<10}, // the longest message for this memory
	} {
		t.Run(name, func(t *testing.T) {
			host := newScriptedHost(t)
			s := startStack(t, stack.Config{
				Upstream: host.server.URL(),
				Agent: hostagent.Config{
					Upstream:  hostagent.Upstream{URL: host.server.URL()}, // without the tap, which would queue without a bound
					MaxQueued: 2 << 20,
				},
			})
			var wg sync.WaitGroup
			lines := []*line{{}, {rate: 16 << 20}, {}}
			const stops = 2
			for i, network := range lines {
				id := fmt.Sprint("c", i)
				var next atomic.Int64 // number of the next message that the client must receive
				all := make(chan struct{})
				c := greet(t, s, stack.Host, id, network, func(frame []byte) {
					n := next.Load()
					if strings.Contains(string(frame[:min(len(frame), 200)]), fmt.Sprintf(`"n":%d,`, n)) {
						if next.Add(1) == int64(much.messages) {
							close(all)
						}
					}
				})
				thaw := func() {}
				if i == stops {
					thaw = network.freeze()
				}
				defer thaw()
				conn := host.conn(id, 0)
				wg.Go(func() {
					for n := range much.messages {
						if err := conn.say(note("ahp-session:/1", n, much.size)); err != nil {
							t.Errorf("saying messages to %s: %v; want no error", id, err)
							return
						}
					}
				})
				wg.Go(func() {
					if i == stops {
						time.Sleep(time.Second)
						thaw()
					}
					tick := time.NewTicker(2 * stepTime)
					defer tick.Stop()
					for before := int64(-1); before < next.Load(); { // goes on as long as the client receives something
						before = next.Load()
						select {
						case <-all:
							return
						case <-c.Done():
							t.Errorf("%s was closed behind %d messages: %v; want it connected", id, next.Load(), c.Err())
							return
						case <-tick.C:
						}
					}
					t.Errorf("%s received %d messages, and then no further; want all", id, next.Load())
				})
			}
			wg.Wait()
		})
	}
}
