package bench

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/faultproxy"
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
	size := b.unlessTiny(phoneSession, 16<<10)
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
	opens := newFigure(work+"opens in", "s", took[0]).beside("as it is", took[0], took[1]).want(ratioAtMost(0.25)).means("On a bad line a session is there four times sooner.")
	return []Figure{opens, newFigure(work+"costs the relay", "ms of processor", cpu[0]).beside("as it is", cpu[0], cpu[1])}
}

// longPhone measures the same as phone with a session of 20 MiB, which takes seven
// minutes.
func longPhone(b *testbed) []Figure {
	s, relay := b.oneHost(siteConfig{relayFlags: []string{"--compress-clients", "all"}})
	size := b.unlessTiny(longSession, 16<<10)
	lines := []string{b.slowLine(s.at(relayPort)), b.slowLine(s.at(relayPort))} // each session has its own
	open := func(i int, mode websocket.CompressionMode) series {
		return series{openSession(b.ctx, "ws://"+lines[i]+"/ahp/"+hostName(0), relay.tokens[i], fmt.Sprint("phone-", i), size, mode).Seconds()}
	}
	var packed, plain series
	must.Both(func() { packed = open(0, websocket.CompressionNoContextTakeover) }, func() { plain = open(1, websocket.CompressionDisabled) })
	return []Figure{newFigure(fmt.Sprintf("a session of %d MiB at 400 kbit/s opens in", size>>20), "s", packed).beside("as it is", packed, plain).want(ratioAtMost(0.25))}
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

// slowLine starts a proxy in front of an address, which passes on bytes at a phone's
// speed. It returns the proxy's address.
func (b *testbed) slowLine(target string) (address string) {
	p := b.proxy(target)
	p.Shape(faultproxy.Shape{Rate: phoneSpeed})
	return p.Addr()
}
