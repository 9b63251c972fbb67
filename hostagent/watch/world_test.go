package watch_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A lineSocket is a connection to a host over pipes, with a message per line.
type lineSocket struct {
	in  *bufio.Reader
	out *io.PipeWriter
}

func dialHost(ctx context.Context, host *agenthost.Host, running *sync.WaitGroup) *lineSocket {
	hostIn, out := io.Pipe()
	in, hostOut := io.Pipe()
	running.Go(func() {
		_ = host.ServeStdio(ctx, hostIn, hostOut)
		_ = hostOut.Close()
	})
	return &lineSocket{bufio.NewReader(in), out}
}

func (s *lineSocket) Read() ([]byte, bool, error) {
	line, err := s.in.ReadBytes('\n')
	return line, false, err
}

func (s *lineSocket) Write(message []byte, _ bool) error {
	_, err := s.out.Write(append(append([]byte{}, message...), '\n'))
	return err
}

func (s *lineSocket) Close(string) { _ = s.out.Close() }

// A world has a scripted host, a Watch, a relay for its reports, and a user connected to the host.
type world struct {
	t       testing.TB
	host    *agenthost.Host
	ledger  *notice.Ledger
	watch   *watch.Watch
	user    *lineSocket
	cancel  context.CancelFunc
	running sync.WaitGroup
	nextID  int

	mu     sync.Mutex
	socks  []*lineSocket // the Watch's connections
	down   bool          // the Watch cannot connect
	opened map[string]int
	closed map[string]int
	over   []notice.Event
	open   map[string]notice.Event
	sent   []string // all messages from the Watch to the host
	listed []string // the sessions of which Config.Summary got the whole summary
	works  []int    // the numbers that Config.Working got
}

// A tapSocket records the messages that the Watch sends to the host.
type tapSocket struct {
	*lineSocket
	world *world
}

func (s tapSocket) Write(message []byte, binary bool) error {
	s.world.mu.Lock()
	s.world.sent = append(s.world.sent, string(message))
	s.world.mu.Unlock()
	return s.lineSocket.Write(message, binary)
}

func newWorld(t testing.TB, protocol agenthost.Protocol) *world {
	host, err := scripted.New(agenthost.Config{Protocol: protocol})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{
		t: t, host: host, ledger: notice.NewLedger("agent"), cancel: cancel,
		opened: map[string]int{}, closed: map[string]int{}, open: map[string]notice.Event{},
	}
	w.watch = watch.New(watch.Config{
		Ledger: w.ledger, Moments: true, Log: slog.New(slog.DiscardHandler),
		Summary: func(uri string, raw []byte, _ bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if _, whole := ahp.MemberOf(raw, "resource"); whole {
				w.listed = append(w.listed, uri)
			}
		},
		Working: func(sessions int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.works = append(w.works, sessions)
		},
		Dial: func(context.Context) (watch.Socket, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.down {
				return nil, errors.New("nobody there")
			}
			sock := dialHost(ctx, host, &w.running)
			w.socks = append(w.socks, sock)
			return tapSocket{sock, w}, nil
		},
	})
	w.running.Go(func() { w.watch.Run(ctx) })
	w.running.Go(func() { w.relay(ctx) })
	w.user = dialHost(ctx, host, &w.running)
	w.running.Go(func() { // messages to the user are not needed
		for {
			if _, _, err := w.user.Read(); err != nil {
				return
			}
		}
	})
	w.say("initialize", `{"channel":"ahp-root://","clientId":"user","protocolVersions":["1.1.0","0.10.0","0.9.0","0.8.0"]}`)
	return w
}

// close stops the Watch, the host and all goroutines.
func (w *world) close() {
	w.cancel()
	w.user.Close("")
	if err := w.host.Close(); err != nil {
		w.t.Errorf("Close = %v; want no error", err)
	}
	w.running.Wait()
}

// relay takes the Watch's reports and acknowledges them, as a relay does.
func (w *world) relay(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.ledger.Wake():
		}
		for {
			report, ok := w.ledger.Report(false)
			if !ok {
				break
			}
			w.take(report)
			w.ledger.Sent(&notice.Ack{Seq: report.Seq})
		}
	}
}

func (w *world) take(report notice.Report) {
	data, err := json.Marshal(report)
	if err == nil {
		report, err = notice.ReadReport(data)
	}
	if err != nil {
		w.t.Errorf("ReadReport: %v; want no error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range report.Events {
		if !e.Kind.Needs() {
			w.over = append(w.over, e)
			continue
		}
		if _, known := w.open[e.ID]; !known {
			w.opened[e.ID]++
		}
		w.open[e.ID] = e
	}
	still := map[string]bool{}
	for _, id := range report.Open {
		still[id] = true
	}
	for id := range w.open {
		if !still[id] {
			w.closed[id]++
			delete(w.open, id)
		}
	}
}

// say sends a request from the user to the host.
func (w *world) say(method, params string) {
	w.nextID++
	w.must(w.user.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, w.nextID, method, params), false))
}

// dispatch sends an action from the user to the host.
func (w *world) dispatch(channel string, action any) {
	data, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": "dispatchAction", "params": map[string]any{"channel": channel, "clientSeq": 1, "action": action}})
	w.must(err)
	w.must(w.user.Write(data, false))
}

func (w *world) must(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

// cut ends the Watch's connections. Until the next call, new connections fail if down is set.
func (w *world) cut(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	for _, s := range w.socks {
		s.Close("")
	}
	w.socks = nil
}

func (w *world) state() (open map[string]notice.Event, over []notice.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	open = map[string]notice.Event{}
	for id, e := range w.open {
		open[id] = e
	}
	return open, append([]notice.Event{}, w.over...)
}

// methods returns which methods the Watch has sent to the host.
func (w *world) methods() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := map[string]bool{}
	for _, message := range w.sent {
		if env, err := ahp.Peek([]byte(message)); err == nil {
			list[string(env.Method)] = true
		}
	}
	return list
}
