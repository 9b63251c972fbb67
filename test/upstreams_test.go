package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
	"ahprelay/test/testca"
)

// TestEachKindOfUpstreamServesTheFlows runs the flows with hosts that the host-agent
// reaches through a Unix socket or with TLS. Each host requires a connection token, and
// the host-agent reads it from a file.
func TestEachKindOfUpstreamServesTheFlows(t *testing.T) {
	t.Parallel()
	const token = "s3cret"
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listeners := map[string]func(t *testing.T) (l net.Listener, url string){
		"unix": func(t *testing.T) (net.Listener, string) {
			path := filepath.Join(t.TempDir(), "host.sock")
			return listen(t, "unix", path), "unix:" + path
		},
		"wss": func(t *testing.T) (net.Listener, string) {
			certificate, err := testca.Certificate()
			if err != nil {
				t.Fatal(err)
			}
			l := listen(t, "tcp", "127.0.0.1:0")
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate}}), "wss://" + l.Addr().String() + "/some/path"
		},
	}
	for kind, open := range listeners {
		for _, f := range readFlows(t) {
			t.Run(kind+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				_, host := newRefhost(t, func(cfg *agenthost.Config) { cfg.Root, cfg.ConnectionToken = dir, token })
				s := startStackWith(t, stack.Config{Upstream: host.URL()}, func(s *stack.Stack, cfg *hostagent.Config) error {
					l, url := open(t)
					serveTap(t, s.Tap, l)
					cfg.Upstream = hostagent.Upstream{URL: url, TokenFile: tokenFile}
					return nil
				})
				clients := play(t, f, throughRelay(t, s), refhostVars(dir))
				wantAsHostSent(t, s.Tap, clients)
				if n := len(s.Tap.Conns()); n != len(clients) {
					t.Errorf("%d connections at the host for %d clients; want the same number", n, len(clients))
				}
			})
		}
	}
}

// refhostVars returns the variables for flows at a reference host that serves a
// directory.
func refhostVars(dir string) map[string]string {
	vars := flowVars("demo", "00000000")
	vars["command"], vars["ending"], vars["root"] = "tool", "turnComplete", "file://"+dir
	return vars
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serveTap makes a tap accept connections on a second listener, until the test ends.
func serveTap(t *testing.T, tap *stack.Tap, l net.Listener) {
	t.Helper()
	s := &http.Server{Handler: tap, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		wg.Wait()
	})
}

// startStackWith is startStack, and lets last edit the host-agent's configuration.
func startStackWith(t testing.TB, cfg stack.Config, last func(*stack.Stack, *hostagent.Config) error) *stack.Stack {
	t.Helper()
	if cfg.DataDir == "" {
		cfg.DataDir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	s, err := stack.StartWith(ctx, cfg, last)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// stdioHost is a command that runs a reference host on standard input and output. Each
// process records its traffic in the files $pid.in and $pid.out.
type stdioHost struct {
	dir     string
	command []string
}

func newStdioHost(t *testing.T) stdioHost {
	t.Helper()
	programs, err := procs.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const script = `tee "$0/$$.in" | "$1" --stdio --root "$0" | tee "$0/$$.out"`
	return stdioHost{dir, []string{"sh", "-c", script, dir, filepath.Join(programs, procs.HostProgram)}}
}

// conns returns the recorded traffic of each process, by process ID. It leaves out the
// process that serves the host-agent's monitor.
func (h stdioHost) conns(t *testing.T) map[int]stdioConn {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, "*.in"))
	if err != nil {
		t.Fatal(err)
	}
	conns := map[int]stdioConn{}
	for _, file := range files {
		pid, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(file), ".in"))
		if err != nil {
			t.Fatal(err)
		}
		c := stdioConn{readLines(t, file), readLines(t, strings.TrimSuffix(file, ".in")+".out")}
		if len(c.in) > 0 && !bytes.Contains(c.in[0], []byte(`"id":1,"method":"ping"`)) {
			conns[pid] = c
		}
	}
	return conns
}

type stdioConn struct{ in, out [][]byte }

func readLines(t *testing.T, file string) (lines [][]byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
	}
	return lines
}

// The host is a command, which the host-agent starts once for each client. All flows
// with one client run, and each client receives the bytes that its process writes.
func TestFlowsRunOverStdio(t *testing.T) {
	t.Parallel()
	host := newStdioHost(t)
	s := startStackWith(t, stack.Config{Upstream: "ws://127.0.0.1:1"}, func(_ *stack.Stack, cfg *hostagent.Config) error {
		cfg.Upstream = hostagent.Upstream{Command: host.command}
		return nil
	})
	dial := throughRelay(t, s)
	played := 0
	for _, f := range readFlows(t) {
		if strings.Count(strings.Join(f.lines, "\n"), "\ndial ") != 1 {
			continue
		}
		played++
		t.Run(f.name, func(t *testing.T) {
			clients := play(t, f, dial, refhostVars(host.dir))
			c := clients[0]
			select {
			case <-c.Done():
			default:
				if err := c.pass(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			// tee may record bytes a little after it has passed them on.
			for end := time.Now().Add(stepTime); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				for _, conn := range host.conns(t) {
					if !sameFrames(conn.in, c.sent) {
						continue
					}
					got := c.Frames()
					n := min(len(got), len(conn.out))
					wantSameFrames(t, f.name, got[:n], conn.out[:n])
					t.Logf("%d frames to the host, %d to the client, all the same", len(c.sent), n)
					return
				}
			}
			t.Errorf("no process received the client's messages; want one")
		})
	}
	if played == 0 {
		t.Error("no flow with one client was played; want at least one")
	}
}

// The process that serves a client ends. The relay closes this client and no other.
func TestEndedCommandEndsOneClient(t *testing.T) {
	t.Parallel()
	host := newStdioHost(t)
	s := startStackWith(t, stack.Config{Upstream: "ws://127.0.0.1:1"}, func(_ *stack.Stack, cfg *hostagent.Config) error {
		cfg.Upstream = hostagent.Upstream{Command: host.command}
		return nil
	})
	dial := throughRelay(t, s)
	a := join(t, dial, "a", nil)
	var pids map[int]stdioConn
	eventually(t, "one process for one client", func() bool { // tee records bytes only after it has passed them on
		pids = host.conns(t)
		return len(pids) == 1
	})
	b := join(t, dial, "b", nil)
	for pid := range pids {
		if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	wantClosed(t, a, ahp.CloseResync, "resync: the host closed this connection")
	call(t, b, "ping", `{"channel":"ahp-root://"}`)
	join(t, dial, "a", nil)
	awaitClients(t, s, 2)
	_ = b.Close()
	awaitClients(t, s, 1)
}

// The host-agent's command is not a host. Relays report why the host is absent.
func TestRelaysNameTheReasonOfAnEndedCommand(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	s, err := stack.Launch(ctx, stack.Config{
		DataDir: t.TempDir(), Upstream: "ws://127.0.0.1:1",
		Agent: hostagent.Config{Upstream: hostagent.Upstream{Command: []string{"sh", "-c", "exit 3", "--key=s3cret"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	const want = "the host's program ended: exit status 3"
	eventually(t, "the relay says "+want, func() bool {
		info, err := s.API(ctx)
		return err == nil && info.Reason == want // the reason contains no detail of the command
	})
}

// TestAgentBeforeRelay starts a host-agent before its relay. The host is online once
// the relay runs, and again after the relay has restarted.
func TestAgentBeforeRelay(t *testing.T) {
	t.Parallel()
	_, host := newRefhost(t, nil)
	address, dir := natssite.FreePort(t), t.TempDir()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: stack.Tenant, Host: stack.Host, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{"http://" + address}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: host.URL()},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	for range 2 {
		s := &stack.Stack{}
		s.Relay, err = gateway.StartRelay(t.Context(), gateway.RelayConfig{DataDir: dir, Listen: address, AdminListen: gateway.NoListener})
		if err != nil {
			t.Fatal(err)
		}
		awaitState(t, s, "online")
		call(t, join(t, throughRelay(t, s), "a", nil), "ping", `{"channel":"ahp-root://"}`)
		select {
		case err := <-ended:
			t.Fatalf("the host-agent ended with %v; want it running", err)
		default:
		}
		s.Relay.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("host-agent ended with %v; want nil", err)
	}
}

// startNATS starts an external NATS server with an operator's configuration file, which
// includes the file that a relay has written. It returns the server's address.
func startNATS(t *testing.T, dataDir, more string) (address string) {
	t.Helper()
	file := filepath.Join(dataDir, "nats.conf")
	// The resolver stands after the include, so it replaces the included resolver.
	conf := fmt.Sprintf("listen: \"127.0.0.1:-1\"\ninclude %q\nresolver: {type: full, dir: %q}\njetstream: {store_dir: %q}\n%s\n",
		gateway.TrustFile, filepath.Join(dataDir, auth.AccountsDir), filepath.Join(dataDir, auth.StoreDir), more)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(stepTime) {
		t.Fatal("the NATS server is not ready in time; want it ready")
	}
	return s.Addr().String()
}

// Two relays serve a host through an external NATS server, with and without TLS.
// Clients at both relays receive the same bytes. When one relay ends, the clients at
// the second relay stay connected.
func TestExternalNATSServesTwoRelays(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"nats", "tls"} {
		t.Run(scheme, func(t *testing.T) {
			dir, more := t.TempDir(), ""
			if scheme == "tls" {
				cert, key, err := testca.WriteFiles(t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				more = fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)
			}
			relay := gateway.RelayConfig{DataDir: dir, Listen: "127.0.0.1:0", AdminListen: gateway.NoListener, NATSURL: scheme + "://" + natssite.FreePort(t)}
			// At its first start, the relay writes the NATS server's configuration and names the
			// file in its error.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := gateway.StartRelay(ctx, relay); err == nil || !strings.Contains(err.Error(), gateway.TrustFile) {
				t.Fatalf("relay without its NATS server: %v; want an error that names %s", err, gateway.TrustFile)
			}
			relay.NATSURL = scheme + "://" + startNATS(t, dir, more)
			testTwoRelays(t, relay)
		})
	}
}

func testTwoRelays(t *testing.T, relay gateway.RelayConfig) {
	t.Helper()
	_, host := newRefhost(t, nil)
	first := startStackWith(t, stack.Config{
		DataDir: relay.DataDir, Upstream: host.URL(), Relay: relay, Agent: hostagent.Config{NATSURLs: []string{relay.NATSURL}},
	}, nil)
	second := &stack.Stack{}
	var err error
	relay.DataDir = copyKeys(t, relay.DataDir)
	if second.Relay, err = gateway.StartRelay(t.Context(), relay); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Relay.Close)
	awaitState(t, second, "online")

	vars := flowVars("demo", "00000000")
	var clients []*refclient.Client
	for i, s := range []*stack.Stack{first, second, first, second} {
		c := join(t, throughRelay(t, s), fmt.Sprintf("c%d", i), vars)
		if i == 0 {
			create(t, c, vars)
		}
		watch(t, c, vars)
		clients = append(clients, c)
	}
	for _, s := range []*stack.Stack{first, second} {
		awaitClients(t, s, len(clients))
	}
	say(t, clients[0], vars["chat"], 1, "stream 200 2 500")
	awaitDeltas(t, clients, 200)
	for i, c := range clients {
		wantAllOf(t, fmt.Sprintf("c%d", i), c, first.Tap.Conns()[i])
	}

	second.Relay.Close()
	for _, c := range []*refclient.Client{clients[1], clients[3]} {
		select {
		case <-c.Done():
		case <-time.After(stepTime):
			t.Error("a client of the ended relay is connected; want it closed")
		}
	}
	say(t, clients[0], vars["chat"], 2, "stream 50 2 500")
	awaitDeltas(t, []*refclient.Client{clients[0], clients[2]}, 250)
	awaitClients(t, first, 2)
}

// TestAgentNeedsNATSURL starts a host-agent whose relay uses an external NATS server,
// without that server's URL. Its error names the missing setting.
func TestAgentNeedsNATSURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Authority().WriteTrustConfig(filepath.Join(dir, gateway.TrustFile)); err != nil {
		t.Fatal(err)
	}
	relay := gateway.RelayConfig{DataDir: dir, NATSURL: "nats://" + startNATS(t, dir, ""), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener}
	running, err := gateway.StartRelay(t.Context(), relay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Close)
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: stack.Tenant, Host: stack.Host, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{running.URL()}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: "ws://127.0.0.1:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--nats-url") {
		t.Errorf("host-agent ended with %v; want an error that names --nats-url", err)
	}
}
