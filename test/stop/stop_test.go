package stop

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ahprelay/test/procs"
	"ahprelay/test/refclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience limits each step, on a slow machine too.
	patience = time.Minute

	// talkers is the number of clients that send requests to the host all the time.
	talkers = 8

	// unanswered limits how many requests of a talker have no answer yet. Even a slow
	// machine must be able to answer all of them during a drain.
	unanswered = 100

	// drain is the time that the relay may take to stop. By default, a client that reads
	// nothing would have 40 s, which is longer than [procs.Process.End] waits.
	drain = 8 * time.Second
)

// A talker is a client that sends one request after the other, without waiting
// for each answer.
type talker struct {
	id     string
	client *refclient.Client
	sent   [][]byte // set before done is closed
	done   chan struct{}
}

// join connects a client to the site's host and initializes it.
func join(t *testing.T, site *procs.Site, id string, opts refclient.Options) *refclient.Client {
	t.Helper()
	var err error
	if opts.Token, err = site.Token(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := refclient.Dial(ctx, site.URL(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: id}); err != nil {
		t.Fatal(err)
	}
	return c
}

// talk connects a talker, which sends requests until its connection ends.
func talk(t *testing.T, site *procs.Site, id string) *talker {
	room := make(chan struct{}, unanswered)
	answered := func([]byte) {
		select {
		case <-room:
		default: // the answer to initialize
		}
	}
	k := &talker{id: id, client: join(t, site, id, refclient.Options{OnFrame: answered}), done: make(chan struct{})}
	go func() {
		defer close(k.done)
		for n := 0; ; n++ {
			select {
			case room <- struct{}{}:
			case <-k.client.Done():
				return
			}
			m := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"%s-%d","method":"ping","params":{"channel":"ahp-root://"}}`, id, n)
			if k.client.SendRaw(m) != nil {
				return
			}
			k.sent = append(k.sent, m)
			time.Sleep(time.Millisecond)
		}
	}()
	return k
}

// A wire is a client's network connection. Between two events, it delivers nothing.
type wire struct {
	net.Conn
	off, on chan struct{} // it delivers nothing from the close of off to the close of on
}

func (w wire) Read(p []byte) (int, error) {
	w.wait()
	n, err := w.Conn.Read(p)
	w.wait()
	return n, err
}

func (w wire) wait() {
	select {
	case <-w.off:
		<-w.on
	default:
	}
}

// deaf connects a client that sends requests with large answers and then reads nothing,
// until the test calls listen.
func deaf(t *testing.T, site *procs.Site) (listen func()) {
	t.Helper()
	off, on := make(chan struct{}), make(chan struct{})
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return wire{conn, off, on}, err
	}
	c := join(t, site, "deaf", refclient.Options{
		NoRecord:   true,
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	})
	close(off)
	for i := range 3 {
		m := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"%d","method":"resourceRead","params":{"channel":"ahp-root://","uri":"demo-blob:/8000000"}}`, i)
		if err := c.SendRaw(m); err != nil {
			t.Fatal(err)
		}
	}
	return func() { close(on) }
}

// newSite starts relay, host-agent and host.
func newSite(t *testing.T) *procs.Site {
	t.Helper()
	programs, err := procs.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	site, err := procs.Start(t.Context(), procs.Config{
		Bench:      procs.Bench{Programs: programs, Dir: t.TempDir()},
		RelayFlags: []string{"--drain", drain.String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(site.Close)
	return site
}

// The relay is stopped while talkers send requests, and while one client does not read
// its large answers. The host must receive all messages that a client could send. The
// clients must receive the host's messages in order, and then a close frame with 1001.
// The relay must end in time.
func TestStoppingRelayLosesNothing(t *testing.T) {
	site := newSite(t)
	var all []*talker
	for i := range talkers {
		all = append(all, talk(t, site, fmt.Sprint("t", i)))
	}
	defer deaf(t, site)()
	time.Sleep(time.Second)
	began := time.Now()
	if err := site.Relay.End(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Logf("the relay took %v", time.Since(began))
	if code := site.Relay.ExitCode(); code != 0 {
		t.Errorf("the relay ended with exit status %d; want 0; its log:\n%s", code, site.Relay.Log())
	}
	for _, k := range all {
		<-k.client.Done()
		<-k.done
		if code, reason := k.client.CloseStatus(); code != 1001 || reason != "relay shutting down" {
			t.Errorf("%s was closed with %d %q; want 1001", k.id, code, reason)
		}
	}
	if log := site.Agent.Log(); !strings.Contains(log, "relay shutting down") {
		t.Errorf("the host-agent's log lacks relay shutting down:\n%s", log)
	}
	// The host-agent is stopped. It must end with status 0.
	if err := site.Agent.End(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := site.Agent.ExitCode(); code != 0 {
		t.Errorf("the host-agent ended with exit status %d; want 0; its log:\n%s", code, site.Agent.Log())
	}
	wantAll(t, site, all)
}

// wantAll fails unless the host has received all messages of each talker, and each
// talker has received a beginning of what the host sent to it.
func wantAll(t *testing.T, site *procs.Site, all []*talker) {
	t.Helper()
	conns, err := site.HostConns()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		conn := conns[k.id]
		if conn == nil {
			t.Errorf("the host has no connection for the client %s; want one", k.id)
			continue
		}
		if got := conn.Received[1:]; !same(got, k.sent) { // without initialize
			t.Errorf("the client %s sent %d messages, and the host received %d; want the same", k.id, len(k.sent), len(got))
		}
		if got := k.client.Frames(); len(got) > len(conn.Sent) || !same(got, conn.Sent[:len(got)]) {
			t.Errorf("the client %s received different frames than the host sent; want the same", k.id)
		} else {
			t.Logf("%s sent %d, got %d of %d", k.id, len(k.sent), len(got), len(conn.Sent))
		}
	}
}

func same(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
