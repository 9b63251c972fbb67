package bench

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// A phone at the edge of its cell opens a session with this many bytes.
const (
	phoneSpeed   = 400_000 / 8 // bytes a second
	phoneSession = 1 << 20     // bytes
	longSession  = 20 << 20
)

// phone measures how long a session takes to open over a slow connection.
func phone(b *testbed) []Figure {
	s, relay := b.oneHost(siteConfig{relayFlags: []string{"--compress-clients", "all"}})
	url := "ws://" + b.slowLine(s.at(relayPort)) + "/ahp/" + hostName(0)
	size := phoneSession
	if b.o.Tiny {
		size = 16 << 10
	}
	took, cpu := make([]series, 2), make([]series, 2)
	for range min(b.o.Rounds, 2) {
		for i, mode := range []websocket.CompressionMode{websocket.CompressionNoContextTakeover, websocket.CompressionDisabled} {
			before := must.Get(loadgen.CPU(s.relay.Pid()))
			d := openSession(b.ctx, url, relay.tokens[0], "phone", size, mode)
			after := must.Get(loadgen.CPU(s.relay.Pid()))
			took[i], cpu[i] = append(took[i], d.Seconds()), append(cpu[i], ms(after-before))
		}
	}
	work := fmt.Sprintf("a session of %d KiB at 400 kbit/s, ", size>>10)
	opens := newFigure(work+"opens in", "s", took[0]).beside("as it is", took[0], took[1])
	if !b.o.Tiny {
		opens = opens.want(ratioAtMost(0.25)).means("On a bad line a session is there four times sooner.")
	}
	return []Figure{opens, newFigure(work+"costs the relay", "ms of processor", cpu[0]).beside("as it is", cpu[0], cpu[1])}
}

// longPhone measures the same as phone with a session of 20 MiB, which takes seven
// minutes.
func longPhone(b *testbed) []Figure {
	s, relay := b.oneHost(siteConfig{relayFlags: []string{"--compress-clients", "all"}})
	size := longSession
	if b.o.Tiny {
		size = 16 << 10
	}
	lines := []string{b.slowLine(s.at(relayPort)), b.slowLine(s.at(relayPort))} // each session has its own
	open := func(i int, mode websocket.CompressionMode) series {
		return series{openSession(b.ctx, "ws://"+lines[i]+"/ahp/"+hostName(0), relay.tokens[i], fmt.Sprint("phone-", i), size, mode).Seconds()}
	}
	var packed, plain series
	must.Both(func() { packed = open(0, websocket.CompressionNoContextTakeover) }, func() { plain = open(1, websocket.CompressionDisabled) })
	opens := newFigure(fmt.Sprintf("a session of %d MiB at 400 kbit/s opens in", size>>20), "s", packed).beside("as it is", packed, plain)
	if !b.o.Tiny {
		opens = opens.want(ratioAtMost(0.25))
	}
	return []Figure{opens}
}

// openSession connects a client to a session. It returns the time from initialize until
// the snapshot has arrived.
func openSession(ctx context.Context, url, token, clientID string, size int, mode websocket.CompressionMode) time.Duration {
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}, CompressionMode: mode})
	must.Do(err)
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(-1)
	began := time.Now()
	for _, request := range []string{
		fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"protocolVersions":["0.9.0"]}}`, clientID),
		fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"subscribe","params":{"channel":%q}}`, loadgen.SessionChannel(size)),
	} {
		must.Do(ws.Write(ctx, websocket.MessageText, []byte(request)))
		_, answer, err := ws.Read(ctx)
		must.Do(err)
		if len(answer) >= size {
			return time.Since(began)
		}
	}
	must.Fail("no answer to the subscription has %d bytes", size)
	return 0
}

// slowLine starts a proxy in front of an address, which passes on responses at a
// phone's speed. It returns the proxy's address.
func (b *testbed) slowLine(target string) (address string) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(b.ctx)
	b.ends = append(b.ends, func() {
		cancel()
		_ = listener.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
			all.Go(func() { slowly(near, far, phoneSpeed) })
			all.Go(func() { slowly(far, near, phoneSpeed) })
		}
	})
	return listener.Addr().String()
}

// slowly copies speed bytes a second until either end closes, and closes both.
func slowly(to, from net.Conn, speed int) {
	defer func() { _, _ = to.Close(), from.Close() }()
	piece := make([]byte, speed/50)
	next := time.Now()
	for {
		n, err := from.Read(piece)
		if _, failed := to.Write(piece[:n]); err != nil || failed != nil {
			return
		}
		if now := time.Now(); next.Before(now) {
			next = now
		}
		next = next.Add(time.Duration(n) * time.Second / time.Duration(speed))
		time.Sleep(time.Until(next))
	}
}
