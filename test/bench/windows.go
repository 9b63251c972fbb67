package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf16"

	"github.com/coder/websocket"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// In the part windows, an agent streams to viewers that request delivery in windows.
const (
	windowViewers = 50
	windowActions = 200
	windowSize    = 250 // bytes in a delta's text; all deltas differ
	windowBytes   = 1 << 20
)

// A windowsWay is a site with a host that can deliver in windows.
type windowsWay struct {
	site    *site
	host    *procs.Process
	meter   *stack.Meter
	viewers []*windowViewer
	chat    string

	sent, agentCPU, hostCPU series
}

// windows measures what delivery in windows (AHP 1.1) costs the host's machine.
// gate.Windows declines such delivery. Pieces with equal bytes are shared like all
// messages.
func windows(b *testbed) (figures []Figure, err error) {
	ways := []bool{true, false}
	if b.o.Tiny {
		ways = ways[:1]
	}
	for _, natsTCP := range ways {
		var both [2]*windowsWay
		for i := range both {
			if both[i], err = b.windowsWay(natsTCP, i == 1); err != nil {
				return nil, err
			}
			if err = both[i].turn(b, func() error { return nil }); err != nil { // the host-agent learns the subscriptions
				return nil, err
			}
			if got := both[i].viewers[0].windows.Load(); got != (i == 1) {
				return nil, fmt.Errorf("the viewer receives windows: %v; want %v", got, i == 1)
			}
		}
		err = b.rounds(func(int) error {
			for _, w := range both {
				if err := w.measure(b); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		figures = append(figures, windowFigures(natsTCP, both[0], both[1])...)
	}
	return figures, nil
}

func windowFigures(natsTCP bool, declined, let *windowsWay) []Figure {
	by := "through the relay's port"
	if natsTCP {
		by = "NATS over TCP"
	}
	work := fmt.Sprintf("%d viewers × %d actions of %d B that would come in windows, %s, ", windowViewers, windowActions, windowSize, by)
	const name = "windows let through"
	return []Figure{
		newFigure(work+"uplink", "MB", declined.sent).beside(name, declined.sent, let.sent).means("What clients that ask for windows would cost, which are declined."),
		newFigure(work+"host-agent", "CPU ms", declined.agentCPU).beside(name, declined.agentCPU, let.agentCPU),
		newFigure(work+"host", "CPU ms", declined.hostCPU).beside(name, declined.hostCPU, let.hostCPU),
	}
}

// windowsWay starts a site with an AHP 1.1 host and viewers. The host-agent removes
// requests for windows. If let is true, a proxy between host-agent and host adds such
// requests again.
func (b *testbed) windowsWay(natsTCP, let bool) (*windowsWay, error) {
	w := &windowsWay{}
	name := fmt.Sprintf("tcp-%v-let-%v", natsTCP, let)
	address, err := procs.FreeAddress()
	if err != nil {
		return nil, err
	}
	address += ":18990"
	w.host = b.bench.Process("", name+"-host", procs.HostProgram, "--listen", address, "--protocol", "1.1")
	if err := w.host.Start(); err != nil {
		return nil, err
	}
	between := httptest.NewServer(&asker{b.ctx, "ws://" + address, let})
	b.ends = append(b.ends, between.Close)
	w.site, err = b.site(siteConfig{name: name, natsTCP: natsTCP, upstreams: []string{"ws" + strings.TrimPrefix(between.URL, "http")},
		between: func(target string) (string, error) {
			w.meter, err = b.meter(target)
			return w.meter.Addr(), err
		}})
	if err != nil {
		return nil, err
	}
	session := "demo:/windows"
	w.chat = "ahp-chat://default/" + base64.RawURLEncoding.EncodeToString([]byte(session))
	for i := range b.many(windowViewers) {
		v, err := w.join(b, i, session)
		if err != nil {
			return nil, err
		}
		w.viewers = append(w.viewers, v)
	}
	return w, nil
}

// A windowViewer watches the chat. If the chat comes in windows, the viewer gives
// credit.
type windowViewer struct {
	client  *refclient.Client
	begun   chan struct{} // receives a value when a turn begins
	turns   chan struct{} // receives a value when a turn ends
	text    strings.Builder
	taken   int64 // UTF-16 bytes in the messages received so far
	told    int64
	windows atomic.Bool // true after the first piece of a window
}

func (w *windowsWay) join(b *testbed, i int, session string) (*windowViewer, error) {
	tokens, err := w.site.tokens(0)
	if err != nil {
		return nil, err
	}
	v := &windowViewer{begun: make(chan struct{}, 1), turns: make(chan struct{}, 1)}
	url := "ws" + strings.TrimPrefix(w.site.url(), "http") + "/ahp/" + hostName(0)
	v.client, err = refclient.Dial(b.ctx, url, refclient.Options{Token: tokens[0], NoRecord: true, OnFrame: v.hear})
	if err != nil {
		return nil, err
	}
	b.ends = append(b.ends, func() { _ = v.client.Close() })
	params := refclient.InitializeParams{ClientID: fmt.Sprint("viewer-", i), ProtocolVersions: []string{"1.1.0"}}
	if _, err := v.client.Initialize(b.ctx, params); err != nil {
		return nil, err
	}
	if i == 0 {
		if _, err := v.client.Call(b.ctx, "createSession", map[string]any{"channel": session, "provider": "demo"}); err != nil {
			return nil, err
		}
	}
	limits := map[string]any{"receive": map[string]int{"windowBytes": windowBytes, "maximumFrameBytes": windowBytes, "maximumMessageBytes": windowBytes}}
	_, err = v.client.Call(b.ctx, "subscribe", map[string]any{"channel": w.chat, "flowControl": limits})
	return v, err
}

// hear handles a frame from the host.
func (v *windowViewer) hear(frame []byte) {
	if bytes.Contains(frame, []byte(`"channel/frame"`)) {
		v.take(frame)
	}
	for kind, noted := range map[string]chan struct{}{"chat/turnStarted": v.begun, "chat/turnComplete": v.turns} {
		if bytes.Contains(frame, []byte(kind)) {
			select {
			case noted <- struct{}{}:
			default:
			}
		}
	}
}

// take handles a piece of a window, and gives credit when half of the window is used.
func (v *windowViewer) take(frame []byte) {
	var m struct {
		Params struct {
			Channel, Data string
			Final         bool
		}
	}
	if json.Unmarshal(frame, &m) != nil {
		return
	}
	v.windows.Store(true)
	v.text.WriteString(m.Params.Data)
	if !m.Params.Final {
		return
	}
	v.taken += 2 * int64(len(utf16.Encode([]rune(v.text.String()))))
	v.text.Reset()
	if v.taken-v.told >= windowBytes/2 {
		v.told = v.taken
		_ = v.client.Notify("channel/credit", map[string]any{"channel": m.Params.Channel, "consumedBytes": v.taken})
	}
}

// turn makes the agent stream a text that no viewer has received before, and waits
// until all viewers have received it. It calls begun when all have received the prompt.
func (w *windowsWay) turn(b *testbed, begun func() error) error {
	actions := windowActions
	if b.o.Tiny {
		actions = 5
	}
	words := make([]string, actions)
	for i := range words {
		words[i] = (rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text() + rand.Text())[:windowSize-1]
	}
	_, err := w.viewers[0].client.Dispatch(w.chat, map[string]any{
		"type": "chat/turnStarted", "turnId": rand.Text(), "startedAt": "2026-01-01T00:00:00.000Z",
		"message": map[string]any{"text": strings.Join(words, " "), "origin": map[string]any{"kind": "user"}},
	})
	if err != nil {
		return err
	}
	if err := w.wait(b, func(v *windowViewer) chan struct{} { return v.begun }); err != nil {
		return err
	}
	if err := begun(); err != nil {
		return err
	}
	return w.wait(b, func(v *windowViewer) chan struct{} { return v.turns })
}

// wait waits until each viewer's channel has received a value.
func (w *windowsWay) wait(b *testbed, of func(*windowViewer) chan struct{}) error {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	for _, v := range w.viewers {
		select {
		case <-of(v):
		case <-v.client.Done():
			return fmt.Errorf("viewer: %w", v.client.Err())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (w *windowsWay) measure(b *testbed) error {
	costs := func(sent, agent, host *float64) (err error) {
		*sent = float64(w.meter.Bytes()) / 1e6
		if *agent, err = cpuOf(w.site.agents[0]); err == nil {
			*host, err = cpuOf(w.host)
		}
		return err
	}
	var before, after [3]float64
	if err := w.turn(b, func() error { return costs(&before[0], &before[1], &before[2]) }); err != nil {
		return err
	}
	if err := costs(&after[0], &after[1], &after[2]); err != nil {
		return err
	}
	w.sent = append(w.sent, after[0]-before[0])
	w.agentCPU = append(w.agentCPU, after[1]-before[1])
	w.hostCPU = append(w.hostCPU, after[2]-before[2])
	return nil
}

// cpuOf returns the processor time that a process has used, in ms.
func cpuOf(p *procs.Process) (float64, error) {
	t, err := loadgen.CPU(p.Pid())
	return float64(t.Microseconds()) / 1e3, err
}

// An asker is a proxy between host-agent and host. It requests windows in the name of
// the clients.
type asker struct {
	ctx  context.Context
	host string
	ask  bool
}

const askFor = `"params":{"flowControl":{"receive":{"windowBytes":1048576,"maximumFrameBytes":1048576,"maximumMessageBytes":1048576}},`

func (a *asker) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	agent, err := websocket.Accept(out, request, nil)
	if err != nil {
		return
	}
	defer func() { _ = agent.CloseNow() }()
	host, _, err := websocket.Dial(a.ctx, a.host, nil)
	if err != nil {
		return
	}
	defer func() { _ = host.CloseNow() }()
	for _, c := range []*websocket.Conn{agent, host} {
		c.SetReadLimit(64 << 20)
	}
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	go func() {
		defer cancel()
		a.pass(ctx, agent, host, false)
	}()
	a.pass(ctx, host, agent, a.ask)
}

// pass forwards messages until either end closes.
func (a *asker) pass(ctx context.Context, to, from *websocket.Conn, ask bool) {
	for {
		kind, message, err := from.Read(ctx)
		if err != nil {
			return
		}
		if ask && bytes.Contains(message, []byte(`"method":"subscribe"`)) {
			message = bytes.Replace(message, []byte(`"params":{`), []byte(askFor), 1)
		}
		if to.Write(ctx, kind, message) != nil {
			return
		}
	}
}
