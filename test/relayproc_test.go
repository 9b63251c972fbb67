package test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// relayEnv is an environment variable. With it, the test binary runs a relay instead of
// tests. Its value is the relay's gateway.RelayConfig in JSON.
const relayEnv = "AHP_TEST_RELAY"

// A relayProcess is a relay in a separate process, which a test can kill.
type relayProcess struct {
	relayAddrs
	keys *auth.Keys
	cmd  *exec.Cmd
	in   io.Closer
	log  string // name of the log file
	dir  string // data directory
	gone sync.Once
}

// relayAddrs are the addresses that the relay prints when it is ready.
type relayAddrs struct{ URL, NATS, Cluster string }

// serveRelay runs a relay until its standard input ends. A test closes this input to
// stop the relay in order.
func serveRelay(config string) error {
	var cfg gateway.RelayConfig
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	cfg.Gateway.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	relay, err := gateway.StartRelay(context.Background(), cfg)
	if err != nil {
		return err
	}
	defer relay.Close()
	if err := json.NewEncoder(os.Stdout).Encode(relayAddrs{relay.URL(), fmt.Sprint(relay.NATSAddr()), relay.ClusterAddr()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func startRelayProcess(t *testing.T, cfg gateway.RelayConfig) *relayProcess {
	t.Helper()
	config, err := json.Marshal(map[string]any{
		"DataDir": cfg.DataDir, "Listen": cfg.Listen, "AdminListen": gateway.NoListener, "NATSListen": cfg.NATSListen,
		"ClusterListen": cfg.ClusterListen, "ClusterRoutes": cfg.ClusterRoutes,
		"Region": cfg.Region, "GatewayListen": cfg.GatewayListen, "GatewayAdvertise": cfg.GatewayAdvertise, "Gateways": cfg.Gateways,
		"Gateway": map[string]any{"Resume": cfg.Gateway.Resume}, "Notify": map[string]any{"Private": cfg.Notify.Private},
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), "relay-*.log")
	if err != nil {
		t.Fatal(err)
	}
	p := &relayProcess{cmd: exec.Command(os.Args[0]), log: log.Name(), dir: cfg.DataDir}
	p.cmd.Env = append(os.Environ(), relayEnv+"="+string(config))
	p.cmd.Stderr = log
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = stdin
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("relay %s:\n%s", p.URL, said)
		}
		_ = log.Close()
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.relayAddrs)
	}
	if err != nil {
		t.Fatalf("reading the relay process's addresses: %v; want no error", err)
	}
	if p.keys, err = auth.LoadKeys(cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	return p
}

// awaitLog waits until the relay's log contains text.
func (p *relayProcess) awaitLog(t *testing.T, text string) {
	t.Helper()
	eventually(t, "the log of "+p.URL+" says "+text, func() bool {
		said, err := os.ReadFile(p.log)
		return err == nil && strings.Contains(string(said), text)
	})
}

// kill ends the relay without warning, like a crash.
func (p *relayProcess) kill() {
	p.gone.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}

// stop closes the relay's standard input, and waits until the relay has stopped in
// order.
func (p *relayProcess) stop() {
	p.gone.Do(func() {
		_ = p.in.Close()
		_ = p.cmd.Wait()
	})
}

// dial connects a client through this relay to the host of stacks, stack.Host.
func (p *relayProcess) dial(ctx context.Context, opts refclient.Options) (*refclient.Client, error) {
	var err error
	opts.Token, err = p.keys.Tokens().IssueClient(auth.Client{
		Tenant: stack.Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		return nil, err
	}
	return refclient.Dial(ctx, "ws"+p.URL[len("http"):]+"/ahp/"+stack.Host, opts)
}

// host returns the relay's description of the stacks' host.
func (p *relayProcess) host(ctx context.Context) (hostsapi.Info, error) {
	token, err := p.keys.Tokens().IssueClient(auth.Client{
		Tenant: stack.Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		return hostsapi.Info{}, err
	}
	return procs.GetJSON[hostsapi.Info](ctx, p.URL+"/api/hosts/"+stack.Host, token)
}

// await waits until the relay reports stack.Host in the state, and returns its
// description of the host.
func (p *relayProcess) await(t *testing.T, state string) hostsapi.Info {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	for {
		info, err := p.host(ctx)
		if err == nil && string(info.State) == state {
			return info
		}
		if ctx.Err() != nil {
			t.Fatalf("host is %s (%s), %v; want %s", info.State, info.Reason, err, state)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// copyKeys returns a new data directory with the keys of the data directory from.
func copyKeys(t *testing.T, from string) (to string) {
	t.Helper()
	to = t.TempDir()
	if _, err := auth.LoadKeys(from); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(from, "keys", "*"))
	if err == nil {
		err = os.Mkdir(filepath.Join(to, "keys"), 0o700)
	}
	for _, file := range files {
		data, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr, os.WriteFile(filepath.Join(to, "keys", filepath.Base(file)), data, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}
