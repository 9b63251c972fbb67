package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A realHost is a third-party host with a scripted agent. The benchmark starts the
// agent's turns over its own direct connection to the host.
type realHost struct {
	bed    *testbed
	url    string
	pid    int
	driver *refclient.Client
	made   int // number of sessions so far
}

// realProvider is the provider of the scripted agent. The agent understands the prompt
// "stream N MS SIZE".
const realProvider = "mock"

// startReal starts Options.HostCommand, which listens at PORT on this machine.
func (b *testbed) startReal() *realHost {
	free := must.Get(net.Listen("tcp", "127.0.0.1:0"))
	at := free.Addr().String()
	_, port, _ := net.SplitHostPort(at)
	must.Do(free.Close())
	state := filepath.Join(b.dir, "host-state")
	must.Do(os.MkdirAll(state, 0o700))
	h := &realHost{bed: b, url: "ws://" + at, pid: b.command("real-host", at, "env", "PORT="+port, "LOG=off", "STATE="+state, b.o.HostCommand)}
	h.driver = must.Get(refclient.Dial(b.ctx, h.url, refclient.Options{}))
	b.ends = append(b.ends, func() { _ = h.driver.Abort() })
	must.Get(h.driver.Initialize(b.ctx, refclient.InitializeParams{ClientID: "driver", ProtocolVersions: []string{"0.9.0"}}))
	return h
}

// chat creates a session, and returns its chat's channel.
func (h *realHost) chat() (chat string) {
	h.made++
	session := fmt.Sprintf("%s:/00000000-0000-4000-8000-%012d", realProvider, h.made)
	chat = "ahp-chat://default/" + base64.RawURLEncoding.EncodeToString([]byte(session))
	must.Get(h.driver.Call(h.bed.ctx, "createSession", map[string]any{"channel": session, "provider": realProvider}))
	for _, channel := range []string{session, chat} {
		must.Get(h.driver.Subscribe(h.bed.ctx, channel))
	}
	return chat
}

// A watch has the viewers of a chat at a real host.
type watch struct {
	chat    string
	readers sync.WaitGroup
	viewers []*websocket.Conn

	mu    sync.Mutex
	seen  map[int64]time.Time // time at which the first viewer received each action
	delay []time.Duration     // delay of each later viewer after the first
	got   int
}

// watch connects n viewers to a chat, until the testbed ends.
func (h *realHost) watch(chat, url string, tokens []string, n int) *watch {
	w := &watch{chat: chat, viewers: make([]*websocket.Conn, n), seen: map[int64]time.Time{}}
	h.bed.ends = append(h.bed.ends, func() {
		for _, ws := range w.viewers {
			if ws != nil {
				_ = ws.CloseNow()
			}
		}
		w.readers.Wait()
	})
	var all errgroup.Group
	all.SetLimit(32)
	for i := range w.viewers {
		all.Go(func() (err error) {
			token := ""
			if len(tokens) > 0 {
				token = tokens[i%len(tokens)]
			}
			w.viewers[i], err = h.viewer(chat, url, token, fmt.Sprintf("viewer-%d-%d", h.made, i))
			return err
		})
	}
	must.Do(all.Wait())
	for _, ws := range w.viewers {
		w.readers.Go(func() { w.read(ws) })
	}
	return w
}

// viewer connects a viewer to a chat, and waits for the chat's snapshot.
func (h *realHost) viewer(chat, url, token, clientID string) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(h.bed.ctx, readyTime)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1)
	list, _ := json.Marshal([]string{chat}) // a list of strings always encodes
	err = ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"protocolVersions":["0.9.0"],"initialSubscriptions":%s}}`, clientID, list))
	for err == nil {
		var message []byte
		if _, message, err = ws.Read(ctx); bytes.Contains(message, []byte(`"fromSeq":`)) {
			return ws, nil
		}
	}
	_ = ws.CloseNow()
	return nil, fmt.Errorf("%s: %w", url, err)
}

// read records the actions on a viewer's connection until the connection ends.
func (w *watch) read(ws *websocket.Conn) {
	for {
		_, message, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		if seq, ok := deltaSeq(message); ok {
			w.arrived(seq, time.Now())
		}
	}
}

func (w *watch) arrived(seq int64, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got++
	if first, ok := w.seen[seq]; ok {
		w.delay = append(w.delay, now.Sub(first))
	} else {
		w.seen[seq] = now
	}
}

// deltaSeq returns the serverSeq of a chat/delta action. ok is false for any other
// message.
func deltaSeq(message []byte) (seq int64, ok bool) {
	const name = `"serverSeq":`
	at := bytes.LastIndex(message, []byte(name))
	if at < 0 || !bytes.Contains(message, []byte(`"chat/delta"`)) {
		return 0, false
	}
	digits := message[at+len(name):]
	end := bytes.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return 0, false
	}
	seq, err := strconv.ParseInt(string(digits[:end]), 10, 64)
	return seq, err == nil
}

// A telling is what streaming to viewers has cost.
type telling struct {
	cpu   time.Duration // processor time of the host
	bytes int64         // bytes that the meter has counted
	p99   time.Duration // p99 of the delays of all viewers after the first
}

// tell makes the agent stream n deltas, perSecond each second. It waits until all
// viewers have received them.
func (h *realHost) tell(w *watch, n, perSecond int, meter *stack.Meter) (t telling) {
	w.mu.Lock()
	w.got, w.delay = 0, nil
	clear(w.seen)
	w.mu.Unlock()
	before := must.Get(loadgen.CPU(h.pid))
	sent := meter.Bytes()
	_, err := h.driver.Dispatch(w.chat, map[string]any{
		"type": "chat/turnStarted", "turnId": fmt.Sprintf("turn-%d", time.Now().UnixNano()), "startedAt": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"),
		"message": map[string]any{"text": fmt.Sprintf("stream %d %d 120", n, 1000/perSecond), "origin": map[string]any{"kind": "user"}},
	})
	must.Do(err)
	await(h.bed.ctx, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if want := n * len(w.viewers); w.got < want {
			return fmt.Errorf("the viewers of the chat %s received only %d of %d actions", w.chat, w.got, want)
		}
		return nil
	})
	after := must.Get(loadgen.CPU(h.pid))
	w.mu.Lock()
	defer w.mu.Unlock()
	t = telling{cpu: after - before, bytes: meter.Bytes() - sent}
	if slices.Sort(w.delay); len(w.delay) > 0 {
		t.p99 = w.delay[len(w.delay)*99/100]
	}
	return t
}

// realAudience measures the cost of a view-only link's viewers for a real host, beside the
// cost of as many directly connected viewers.
func (b *testbed) realAudience() []Figure {
	h := b.startReal()
	var meter *stack.Meter
	s, relay := b.oneHost(siteConfig{name: "real", upstreams: []string{h.url}, relayFlags: audienceLimits, between: b.metered(&meter)})
	tokens := s.audienceTokens()
	many := b.many(audienceViewers)
	ways := []struct {
		name, url string
		tokens    []string
		viewers   int

		cpu, sent, p99 series
	}{
		{name: "one viewer", url: relay.url, tokens: tokens, viewers: 1},
		{name: "all", url: relay.url, tokens: tokens, viewers: many},
		{name: directName, url: h.url, viewers: many},
	}
	const actions = 200
	for i := range ways {
		way := &ways[i]
		w := h.watch(h.chat(), way.url, way.tokens, way.viewers)
		b.rounds(func(int) {
			t := h.tell(w, actions, 50, meter)
			way.cpu = append(way.cpu, float64(t.cpu.Microseconds())/actions)
			way.sent, way.p99 = append(way.sent, float64(t.bytes)/actions), append(way.p99, ms(t.p99))
		})
		b.say("%s: %s µs of the host an action", way.name, digits(way.cpu.median()))
	}
	one, all, straight := &ways[0], &ways[1], &ways[2]
	who := fmt.Sprintf("%d viewers of a real host at 50 actions/s: ", many)
	return []Figure{
		newFigure(who+"of the host", "µs an action", all.cpu).beside(one.name, all.cpu, one.cpu).want(ratioAtMost(1.2)).
			means("The host pays for one viewer, however many watch."),
		newFigure(who+"of the host", "µs an action", all.cpu).beside(straight.name, all.cpu, straight.cpu),
		newFigure(who+"leave the host's machine", "bytes an action", all.sent).beside(one.name, all.sent, one.sent).want(ratioAtMost(1.2)),
		newFigure(who+"p99 behind the first", "ms", all.p99).beside(straight.name, all.p99, straight.p99).want(ratioAtMost(1)).orient(atMost(20)),
	}
}
