package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A target is a host for flows.
type target struct {
	url  string
	vars func(flow string, n int) map[string]string // variables of a flow; n makes runs at one host different
}

// newRefhost starts a reference host with a fixed clock and fixed ids, so each run
// sends the same bytes.
func newRefhost(t testing.TB, change func(*agenthost.Config)) (*agenthost.Host, *stack.Server) {
	t.Helper()
	ids := 0
	cfg := agenthost.Config{
		Now:   func() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) },
		NewID: func() string { ids++; return fmt.Sprintf("id-%d", ids) },
	}
	if change != nil {
		change(&cfg)
	}
	host, err := scripted.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server, err := stack.Serve(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop()
		if err := host.Close(); err != nil {
			t.Errorf("closing the host: %v; want no error", err)
		}
	})
	return host, server
}

// upstream returns the host in AHP_UPSTREAM, or a new reference host that serves a
// directory.
func upstream(t *testing.T, dir string) target {
	t.Helper()
	if url := os.Getenv("AHP_UPSTREAM"); url != "" {
		run := time.Now().UnixMicro() % 1_000_000
		return target{url, func(flow string, n int) map[string]string {
			provider := "mock"
			if flow == "turns" {
				provider = "copilotcli"
			}
			vars := flowVars(provider, fmt.Sprintf("%06d%02d", run, n))
			vars["now"] = time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
			vars["command"], vars["ending"], vars["root"] = "!for i in 1 2 3; do echo line $i; done", "error", "file:///tmp"
			return vars
		}}
	}
	_, server := newRefhost(t, func(cfg *agenthost.Config) { cfg.Root = dir })
	return target{server.URL(), func(_ string, n int) map[string]string {
		vars := flowVars("demo", fmt.Sprintf("%08d", n))
		vars["command"], vars["ending"], vars["root"] = "tool", "turnComplete", "file://"+dir
		return vars
	}}
}

// startStack starts a relay and a host-agent in front of a host.
func startStack(t *testing.T, cfg stack.Config) *stack.Stack {
	t.Helper()
	cfg.DataDir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	s, err := stack.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// throughRelay dials the host of a stack through its relay.
func throughRelay(t testing.TB, s *stack.Stack) dialer {
	t.Helper()
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, opts refclient.Options) (*refclient.Client, error) {
		if opts.Token == "" {
			opts.Token = token
		}
		return refclient.Dial(ctx, s.URL(stack.Host), opts)
	}
}

// direct dials a host without a relay.
func direct(url string) dialer {
	return func(ctx context.Context, opts refclient.Options) (*refclient.Client, error) {
		return refclient.Dial(ctx, url, opts)
	}
}

// Every flow runs at a host directly, and again through the relay. In the second run,
// client and host must receive each other's messages byte for byte. A reference host
// must also send a client the same bytes in both runs.
func TestRelayChangesNoByte(t *testing.T) {
	t.Parallel()
	real := os.Getenv("AHP_UPSTREAM") != ""
	dir := t.TempDir()
	for _, f := range readFlows(t) {
		t.Run(f.name, func(t *testing.T) {
			n := 0
			straight := upstream(t, dir)
			want := play(t, f, direct(straight.url), straight.vars(f.name, n))
			if real {
				n++ // a real host still has the sessions of the first run
			}
			relayed := upstream(t, dir)
			s := startStack(t, stack.Config{Upstream: relayed.url})
			got := play(t, f, throughRelay(t, s), relayed.vars(f.name, n))
			wantAsHostSent(t, s.Tap, got)
			for i := 0; !real && i < len(want); i++ {
				wantAsDirectly(t, got[i], want[i])
			}
		})
	}
}

// wantAsDirectly fails unless a client received the same messages through the relay as
// without a relay. It compares them up to the answer to a ping at the end of both runs.
func wantAsDirectly(t *testing.T, got, want *flowClient) {
	t.Helper()
	a, b := timeless(got.Frames()), timeless(want.Frames())
	select {
	case <-want.Done(): // the client was dropped, and may not have received the last frames
		n := min(len(a), len(b))
		a, b = a[:n], b[:n]
	default:
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		if err := want.pass(ctx); err != nil { // wantAsHostSent has done the same for got
			t.Fatal(err)
		}
		b = timeless(want.Frames())
		fence := fmt.Sprintf("%q", fmt.Sprintf("fence-%d", want.fence))
		upTo := func(frames [][]byte) [][]byte {
			return frames[:1+slices.IndexFunc(frames, func(f []byte) bool { return fits(f, []string{"answer", fence}) })]
		}
		a, b = upTo(a), upTo(b)
	}
	wantSameFrames(t, got.name+" against directly", a, b)
}

// timeless removes messages that depend on the host's timers. It replaces a replay by
// its single actions, because the number of replayed actions depends on timing.
func timeless(frames [][]byte) (list [][]byte) {
	for _, f := range frames {
		var replay struct {
			Result struct{ Actions []json.RawMessage }
		}
		switch {
		case fits(f, []string{"note", "root/sessionSummaryChanged"}), fits(f, []string{"note", "otlp/exportLogs"}):
		case json.Unmarshal(f, &replay) == nil && replay.Result.Actions != nil:
			for _, params := range replay.Result.Actions {
				list = append(list, fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"action","params":%s}`, params))
			}
		default:
			list = append(list, f)
		}
	}
	return list
}

// TestFlowsRunSideBySide runs all flows at once through one relay.
func TestFlowsRunSideBySide(t *testing.T) {
	t.Parallel()
	host := upstream(t, t.TempDir())
	s := startStack(t, stack.Config{Upstream: host.url})
	dial := throughRelay(t, s)
	for i, f := range readFlows(t) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			wantAsHostSent(t, s.Tap, play(t, f, dial, host.vars(f.name, i)))
		})
	}
}

// wantAsHostSent fails unless each client and the host received each other's frames, as
// recorded by the tap.
func wantAsHostSent(t *testing.T, tap *stack.Tap, clients []*flowClient) {
	t.Helper()
	for _, c := range clients {
		wantFramesOf(t, tap, c)
	}
}

// wantFramesOf finds the client's connection among the tap's connections, by the frames
// that the client sent. It fails unless the client received this connection's frames.
func wantFramesOf(t *testing.T, tap *stack.Tap, c *flowClient) {
	t.Helper()
	gone := false
	select {
	case <-c.Done():
		gone = true
	default:
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		if err := c.pass(ctx); err != nil {
			t.Errorf("%s does not pass the fence: %v", c.name, err)
			return
		}
	}
	var conns []*stack.TapConn
	for _, conn := range tap.Conns() {
		if sameFrames(conn.ToHost(), c.sent) {
			conns = append(conns, conn)
		}
	}
	if len(conns) != 1 {
		t.Errorf("%s: %d connections at the host got what the client sent (%d frames); want 1", c.name, len(conns), len(c.sent))
		return
	}
	got, want := c.Frames(), conns[0].ToClient()
	n := min(len(got), len(want)) // a client that was dropped may have received only a part
	if gone {
		want = want[:n]
	} else if fence := slices.IndexFunc(want, func(f []byte) bool {
		return fits(f, []string{"answer", fmt.Sprintf("%q", fmt.Sprintf("fence-%d", c.fence))})
	}); fence < 0 || fence >= len(got) {
		t.Errorf("%s: the last answer is number %d at the host, and the client received %d frames; want it among them", c.name, fence, len(got))
		return
	}
	wantSameFrames(t, c.name, got[:n], want[:n])
	t.Logf("%s: %d frames to the host, %d to the client, all the same", c.name, len(c.sent), n)
}

func sameFrames(a, b [][]byte) bool {
	return slices.EqualFunc(a, b, func(x, y []byte) bool { return string(x) == string(y) })
}
