package stalled

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"ahprelay/ahp"
	"ahprelay/auth"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/procs"
	"ahprelay/test/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	clientsFlag = flag.Int("clients", 600, "clients that take nothing")
	memoryFlag  = flag.Int("memory", 512, "MiB of the relay's cgroup")
	queuedFlag  = flag.String("max-queued", "", "--max-queued of the relay; none: not given")
)

const (
	mib = 1 << 20

	healthy  = 8   // number of clients that read
	messages = 300 // number of messages for each of these
	size     = 20 << 10

	// Each stalled client is sent floods messages with floodSize bytes. Together, these
	// are several times the relay's memory.
	floods    = 16
	floodSize = 50 << 10
	writers   = 8

	patience = 5 * time.Minute // limit for each step, on a slow machine too
)

// A host accepts clients, and sends each the messages that the test wants.
type host struct {
	mu    sync.Mutex
	conns map[string]*websocket.Conn // by clientId
}

// ServeHTTP implements [http.Handler].
func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	for {
		_, message, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		env, err := ahp.Peek(message)
		if err != nil {
			return
		}
		if string(env.Method) == "initialize" {
			id := [...]ahp.Member{{Name: "clientId"}}
			_ = ahp.Members(env.Params, id[:])
			clientID, _ := ahp.Text(id[0].Raw)
			h.mu.Lock()
			h.conns[clientID] = ws
			h.mu.Unlock()
		}
		if env.Kind == ahp.Request {
			answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":null}`, env.ID)
			if ws.Write(context.Background(), websocket.MessageText, []byte(answer)) != nil {
				return
			}
		}
	}
}

func (h *host) conn(clientID string) *websocket.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[clientID]
}

// close ends all connections. A pending write to a connection then fails.
func (h *host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ws := range h.conns {
		_ = ws.CloseNow()
	}
}

// A site is a relay in a cgroup, with a host-agent.
type site struct {
	*testing.T
	bench procs.Bench
	keys  *auth.Keys
	relay *procs.Process
	url   string
}

func newSite(t *testing.T, group *procs.Cgroup, upstream string) *site {
	t.Helper()
	programs, err := procs.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &site{T: t, bench: procs.Bench{Programs: programs, Dir: dir}}
	t.Cleanup(s.bench.Kill)
	address, err := procs.FreeAddress()
	s.check(err)
	s.url = address + ":8484"
	s.keys, err = auth.LoadKeys(filepath.Join(dir, "relay"))
	s.check(err)
	enrolment, err := s.keys.Tokens().IssueHost(auth.Enrolment{Tenant: procs.Tenant, Host: procs.Host, Expires: time.Now().Add(time.Hour)})
	s.check(err)
	tokenFile := filepath.Join(dir, "token")
	s.check(os.WriteFile(tokenFile, []byte(enrolment), 0o600))
	const unlimited = "connections=0,pending=0,opens=0"
	args := []string{
		"serve", "--data-dir", filepath.Join(dir, "relay"), "--listen", s.url, "--admin-listen", "none",
		"--limit-address", unlimited, "--limit-subject", unlimited, "--limit-token", unlimited, "--limit-host", unlimited, "--limit-tenant", unlimited,
	}
	if *queuedFlag != "" {
		args = append(args, "--max-queued", *queuedFlag)
	}
	s.relay = s.bench.Process("", "relay", procs.RelayProgram, args...)
	s.relay.In(group)
	agent := s.bench.Process("", "host-agent", procs.AgentProgram, "run", "--relay", "http://"+s.url,
		"--token-file", tokenFile, "--upstream", upstream)
	s.check(s.relay.Launch(t.Context(), func() error { return procs.Ready(http.DefaultClient, "http://"+s.url) }))
	s.check(agent.Launch(t.Context(), func() error {
		info, err := procs.GetJSON[hostsapi.Info](t.Context(), "http://"+s.url+"/api/hosts/"+procs.Host, s.token())
		if err == nil && info.State != "online" {
			err = errors.New("host is " + string(info.State))
		}
		return err
	}))
	return s
}

func (s *site) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) token() string {
	token, err := s.keys.Tokens().IssueClient(auth.Client{
		Tenant: procs.Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	s.check(err)
	return token
}

// dial connects and initializes a client. The test's end closes it.
func (s *site) dial(ctx context.Context, token, clientID string) (*websocket.Conn, error) {
	ws, _, err := websocket.Dial(ctx, "ws://"+s.url+"/ahp/"+procs.Host+"?tkn="+token, nil)
	if err != nil {
		return nil, err
	}
	s.Cleanup(func() { _ = ws.CloseNow() })
	ws.SetReadLimit(-1)
	greeting := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"` + clientID + `"}}`
	if err := ws.Write(ctx, websocket.MessageText, []byte(greeting)); err != nil {
		return nil, err
	}
	_, _, err = ws.Read(ctx)
	return ws, err
}

// dialAll connects and initializes n clients, several at the same time.
func (s *site) dialAll(ctx context.Context, name string, n int) []*websocket.Conn {
	s.Helper()
	conns, errs, token := make([]*websocket.Conn, n), make([]error, n), s.token()
	next := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range next {
				conns[i], errs[i] = s.dial(ctx, token, fmt.Sprint(name, i))
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	s.check(errors.Join(errs...))
	return conns
}

// pad is a text that compression hardly makes shorter.
var pad = func() string {
	text := make([]byte, 2*floodSize)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range text {
		text[i] = 'A' + byte(random.IntN(26))
	}
	return string(text)
}()

// note returns a message with the number n and size bytes of padding.
func note(n, size int) []byte {
	b := append(make([]byte, 0, size+100), `{"jsonrpc":"2.0","method":"x/y","params":{"channel":"ahp-session:/1","n":`...)
	b = append(strconv.AppendInt(b, int64(n), 10), `,"pad":"`...)
	return append(append(b, pad[:size]...), `"}}`...)
}

// TestStalledClientsStayWithinMemory sends much to many clients that read nothing, and
// a little to a few clients that read. The relay stays within its cgroup's memory, and
// the clients that read receive every message.
func TestStalledClientsStayWithinMemory(t *testing.T) {
	group, err := procs.NewCgroup(*memoryFlag * mib)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	peak := func() int {
		bytes, err := group.Peak()
		if err != nil {
			t.Logf("not known how much memory was in use: %v", err)
		}
		return bytes
	}
	h := &host{conns: map[string]*websocket.Conn{}}
	server, err := stack.Serve(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	s := newSite(t, group, server.URL())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	good := s.dialAll(ctx, "good", healthy)
	s.dialAll(ctx, "stalled", *clientsFlag)
	pid, calm := s.relay.Pid(), peak()

	var said, going sync.WaitGroup
	var flooded atomic.Int64
	defer going.Wait()
	defer h.close()
	for w := range writers { // few, to leave processor time for the clients that read
		going.Go(func() {
			for n := range floods {
				for i := w; i < *clientsFlag; i += writers {
					conn := h.conn(fmt.Sprint("stalled", i))
					if conn.Write(ctx, websocket.MessageText, note(n, floodSize+i)) == nil { // the size differs, so that no two clients get the same bytes
						flooded.Add(floodSize)
					}
				}
			}
		})
	}
	for i := range good {
		conn := h.conn(fmt.Sprint("good", i))
		said.Go(func() {
			for n := range messages {
				if err := conn.Write(ctx, websocket.MessageText, note(n, size)); err != nil {
					t.Errorf("the host's write to client %d, which reads, of message %d: %v; want no error", i, n, err)
					return
				}
			}
		})
	}
	for i, ws := range good {
		said.Go(func() {
			for n := range messages {
				if _, got, err := ws.Read(ctx); err != nil || !bytes.Equal(got, note(n, size)) {
					t.Errorf("client %d, which reads, received as message %d: %d bytes, %v; want the sent message", i, n, len(got), err)
					return
				}
			}
		})
	}
	said.Wait()
	if _, err := s.dial(ctx, s.token(), "late"); err != nil {
		t.Errorf("a further client's connection: %v; want no error", err)
	}
	kills, err := group.Kills()
	if err != nil {
		t.Error(err)
	}
	if kills > 0 || s.relay.Pid() != pid {
		t.Errorf("the kernel has killed the relay %d times; want 0; its log:\n%s", kills, s.relay.Log())
	}
	t.Logf("%d clients that take nothing were told %d MiB; of %d MiB at most %d were in use, %d before", *clientsFlag, flooded.Load()/mib, *memoryFlag, peak()/mib, calm/mib)
}
