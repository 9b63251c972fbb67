package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

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
	viewers []*refclient.Client

	mu    sync.Mutex
	seen  map[int64]time.Time // time at which the first viewer received each action
	delay []time.Duration     // delay of each later viewer after the first
	got   int
}

// watch connects n viewers to a chat, until the testbed ends.
func (h *realHost) watch(chat, url string, tokens []string, n int) *watch {
	w := &watch{chat: chat, viewers: make([]*refclient.Client, n), seen: map[int64]time.Time{}}
	h.bed.ends = append(h.bed.ends, func() {
		for _, v := range w.viewers {
			if v != nil {
				_ = v.Abort()
			}
		}
	})
	var all errgroup.Group
	all.SetLimit(32)
	for i := range w.viewers {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(h.bed.ctx, readyTime)
			defer cancel()
			v, err := refclient.Dial(ctx, url, refclient.Options{Token: loadgen.TokenOf(tokens, i), NoRecord: true, OnFrame: w.hear})
			if err != nil {
				return err
			}
			w.viewers[i] = v
			_, err = v.Initialize(ctx, refclient.InitializeParams{ // its result has the chat's snapshot
				ClientID: fmt.Sprintf("viewer-%d-%d", h.made, i), ProtocolVersions: []string{"0.9.0"}, InitialSubscriptions: []string{chat},
			})
			return err
		})
	}
	must.Do(all.Wait())
	return w
}

// hear records an action that a viewer has received.
func (w *watch) hear(frame []byte) {
	if seq, ok := deltaSeq(frame); ok {
		w.arrived(seq, time.Now())
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

// tell makes the agent stream n deltas, perSecond each second. It waits until all
// viewers have received them. It returns the processor time of the host, the bytes that the
// meter has counted, and the p99 of the delays of all viewers after the first.
func (h *realHost) tell(w *watch, n, perSecond int, meter *stack.Meter) (cpu time.Duration, bytes int64, p99 time.Duration) {
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
	return after - before, meter.Bytes() - sent, loadgen.Summary(w.delay).P99
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
			cpu, bytes, p99 := h.tell(w, actions, 50, meter)
			way.cpu = append(way.cpu, float64(cpu.Microseconds())/actions)
			way.sent, way.p99 = append(way.sent, float64(bytes)/actions), append(way.p99, ms(p99))
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
