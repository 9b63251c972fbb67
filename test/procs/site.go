package procs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"ahprelay/auth"
	"ahprelay/test/faultproxy"
)

// These are a site's ports, at the site's own address.
const (
	relayPort       = "8484"
	natsPort        = "4222"
	hostPort        = "18990"
	connectPort     = "8486"
	clientRelayPort = "9001"
	relayNATSPort   = "9002"
	agentNATSPort   = "9003"
	agentHostPort   = "9004"
	clusterPort     = "6222"

	// The other relays of a cluster listen at the ports from these on.
	otherPorts        = 8500
	otherClusterPorts = 6300
)

// A Config describes which parts a [Site] has.
type Config struct {
	Bench
	Others       int      // further relays in the cluster
	ExternalNATS bool     // NATS runs as a separate process
	RelayFlags   []string // further flags
	RelayMemory  int      // memory limit of the relay in bytes, the kernel's memory for it included; 0: no limit
	AgentFlags   []string
	HostFlags    []string
	NoRecord     bool // the host records no frames
	Straight     bool // no proxies stand between host-agent, relay and host; not with ExternalNATS
	Sealed       bool // the host is sealed, so clients must use StartConnect
}

// A Site is a relay with a host, and further relays in its cluster if Config.Others is
// set. The host-agent knows the first two relays. NATS and RelayNATS are nil unless
// NATS is external. Connect is nil before StartConnect.
type Site struct {
	Relay, Agent, Host, NATS, Connect            *Process
	Others                                       []*Process
	ClientRelay, RelayNATS, AgentNATS, AgentHost *faultproxy.Proxy

	cfg     Config
	group   *Cgroup // cgroup of the relay; nil: none
	address string  // address of all parts, without a port
	keys    *auth.Keys
	records []string // names of the record files, for each run of the host

	connectToken string // token for clients of ahp-connect
}

// Start starts a site, and waits until its host is online.
func Start(ctx context.Context, cfg Config) (*Site, error) {
	s := &Site{cfg: cfg}
	for _, step := range []func(context.Context) error{s.prepare, s.startProxies, s.startProcesses} {
		if err := step(ctx); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// prepare finds a free address, and makes keys and tokens.
func (s *Site) prepare(context.Context) (err error) {
	if s.address, err = FreeAddress(); err != nil {
		return err
	}
	if err := os.MkdirAll(s.DataDir(), 0o700); err != nil {
		return err
	}
	if s.keys, err = auth.LoadKeys(s.DataDir()); err != nil {
		return err
	}
	token, err := s.keys.Tokens().IssueHost(auth.Enrolment{Tenant: Tenant, Host: Host, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		return err
	}
	return os.WriteFile(s.tokenFile(), []byte(token), 0o600)
}

// DataDir returns the relay's data directory.
func (s *Site) DataDir() string { return filepath.Join(s.cfg.Dir, "relay") }

func (s *Site) tokenFile() string     { return filepath.Join(s.cfg.Dir, "host.token") }
func (s *Site) at(port string) string { return net.JoinHostPort(s.address, port) }

// FreeAddress returns a loopback address at which nothing listens on the relay's port.
func FreeAddress() (string, error) {
	var last error
	for range 100 {
		address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		l, err := net.Listen("tcp", net.JoinHostPort(address, relayPort))
		if err == nil {
			return address, l.Close()
		}
		last = err
	}
	return "", fmt.Errorf("no address in 127.0.0.0/8: %w", last)
}

func (s *Site) startProxies(context.Context) (err error) {
	agentNATS := s.at(relayPort)
	if s.cfg.ExternalNATS {
		agentNATS = s.at(natsPort)
		if s.RelayNATS, err = faultproxy.New(s.at(relayNATSPort), s.at(natsPort)); err != nil {
			return err
		}
	}
	if s.ClientRelay, err = faultproxy.New(s.at(clientRelayPort), s.at(relayPort)); err != nil {
		return err
	}
	if s.AgentNATS, err = faultproxy.New(s.at(agentNATSPort), agentNATS); err != nil {
		return err
	}
	s.AgentHost, err = faultproxy.New(s.at(agentHostPort), s.at(hostPort))
	return err
}

func (s *Site) startProcesses(ctx context.Context) error {
	relay := append([]string{"serve", "--data-dir", s.DataDir(), "--listen", s.at(relayPort), "--admin-listen", "none"}, s.cfg.RelayFlags...)
	agentHost, agentRelay := s.at(agentHostPort), s.at(agentNATSPort)
	if s.cfg.Straight {
		agentHost, agentRelay = s.at(hostPort), s.at(relayPort)
	}
	agent := append([]string{"run", "--token-file", s.tokenFile(), "--upstream", "ws://" + agentHost}, s.cfg.AgentFlags...)
	if s.cfg.Sealed {
		agent = append(agent, "--sealed", "--control", s.control(), "--state-dir", filepath.Join(s.cfg.Dir, "agent"))
	}
	if s.cfg.ExternalNATS {
		if err := s.startNATS(ctx); err != nil {
			return err
		}
		relay = append(relay, "--nats-url", "nats://"+s.at(relayNATSPort))
		agent = append(agent, "--relay", "http://"+s.at(relayPort), "--nats-url", "nats://"+s.at(agentNATSPort))
	} else {
		agent = append(agent, "--relay", "http://"+agentRelay)
	}
	if s.cfg.Others > 0 {
		agent = append(agent, "--relay", "http://"+s.other(0))
		relay = append(relay, "--cluster-listen", s.at(clusterPort), "--cluster-route", s.routes())
		if err := s.prepareOthers(); err != nil {
			return err
		}
	}
	s.Relay = s.cfg.Process("", "relay", RelayProgram, relay...)
	if s.cfg.RelayMemory > 0 {
		var err error
		if s.group, err = NewCgroup(s.cfg.RelayMemory); err != nil {
			return err
		}
		s.Relay.In(s.group)
	}
	s.Agent = s.cfg.Process("", "host-agent", AgentProgram, agent...)
	if err := s.StartHost(ctx); err != nil {
		return err
	}
	if err := s.startRelays(ctx); err != nil {
		return err
	}
	return s.startAgentFor(ctx, s.Relays())
}

// startRelays starts all relays at once, because the relays of a cluster are ready only
// when two of three are connected.
func (s *Site) startRelays(ctx context.Context) error {
	failed := make([]error, len(s.Others)+1)
	var all sync.WaitGroup
	for i := range s.Others {
		all.Go(func() { failed[i] = s.StartOther(ctx, i) })
	}
	failed[len(s.Others)] = s.StartRelay(ctx)
	all.Wait()
	return errors.Join(failed...)
}

func (s *Site) other(i int) string { return s.at(strconv.Itoa(otherPorts + i)) }

// routes returns the addresses at which the cluster's relays listen for each other.
func (s *Site) routes() string {
	routes := []string{s.at(clusterPort)}
	for i := range s.cfg.Others {
		routes = append(routes, s.at(strconv.Itoa(otherClusterPorts+i)))
	}
	return strings.Join(routes, ",")
}

// prepareOthers makes the processes of the other relays, with copies of the keys.
func (s *Site) prepareOthers() error {
	for i := range s.cfg.Others {
		dir := s.otherDir(i)
		if err := CopyKeys(filepath.Join(s.DataDir(), "keys"), filepath.Join(dir, "keys")); err != nil {
			return err
		}
		s.Others = append(s.Others, s.cfg.Process("", fmt.Sprintf("other-%d", i), RelayProgram, "serve", "--data-dir", dir, "--listen", s.other(i),
			"--admin-listen", "none", "--cluster-listen", s.at(strconv.Itoa(otherClusterPorts+i)), "--cluster-route", s.routes()))
	}
	return nil
}

// CopyKeys copies a directory of keys. Only the owner can read the copy.
func CopyKeys(from, to string) error {
	files, err := os.ReadDir(from)
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name()), data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// StartOther starts the other relay with index i, and waits until it accepts clients.
func (s *Site) StartOther(ctx context.Context, i int) error {
	return s.Others[i].Launch(ctx, func() error { return Ready(http.DefaultClient, "http://"+s.other(i)) })
}

// Replace sends a signal that ends relay i, starts the relay again, and waits until it
// is ready. If empty is true, only its keys stay in its data directory. Index -1 is the
// relay of the clients.
func (s *Site) Replace(ctx context.Context, i int, sig syscall.Signal, empty bool) error {
	relay, dir, start := s.Relay, s.DataDir(), s.StartRelay
	if i >= 0 {
		relay, dir, start = s.Others[i], s.otherDir(i), func(ctx context.Context) error { return s.StartOther(ctx, i) }
	}
	if err := relay.End(sig); err != nil {
		return err
	}
	if empty {
		files, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, f := range files {
			if f.Name() != "keys" {
				err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
			}
		}
		if err != nil {
			return err
		}
	}
	return start(ctx)
}

func (s *Site) otherDir(i int) string { return fmt.Sprintf("%s-%d", s.DataDir(), i) }

func (s *Site) startNATS(ctx context.Context) error {
	const trustFile = "trust.conf"
	dir := filepath.Join(s.cfg.Dir, "nats")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := s.keys.Authority().WriteTrustConfig(filepath.Join(dir, trustFile)); err != nil {
		return err
	}
	config := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: %q\nserver_name: faults\ninclude %q\nresolver: {type: full, dir: %q}\njetstream: {store_dir: %q}\n",
		s.at(natsPort), trustFile, filepath.Join(dir, auth.AccountsDir), filepath.Join(dir, auth.StoreDir))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	s.NATS = s.cfg.Process("", "nats-server", NATSProgram, "-c", config)
	return s.StartNATS(ctx)
}

// StartNATS starts nats-server, and waits until it accepts connections.
func (s *Site) StartNATS(ctx context.Context) error {
	return s.NATS.Launch(ctx, func() error { return Reachable(s.at(natsPort)) })
}

// StartRelay starts the relay, and waits until it accepts clients.
func (s *Site) StartRelay(ctx context.Context) error {
	return s.Relay.Launch(ctx, func() error { return Ready(http.DefaultClient, "http://"+s.at(relayPort)) })
}

// Ready returns nil if the relay at a base URL accepts clients, and otherwise the
// reason.
func Ready(client *http.Client, url string) error {
	response, err := client.Get(url + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New("the relay is not ready")
	}
	return nil
}

// StartAgent starts the host-agent, and waits until its host is online.
func (s *Site) StartAgent(ctx context.Context) error {
	return s.startAgentFor(ctx, s.Relays()[:1])
}

// startAgentFor starts the host-agent, and waits until the host is online at each of
// these relays.
func (s *Site) startAgentFor(ctx context.Context, relays []string) error {
	token, err := s.Token()
	if err != nil {
		return err
	}
	return s.Agent.Launch(ctx, func() error {
		for _, relay := range relays {
			if err := Online(ctx, http.DefaultClient, relay, Host, token); err != nil {
				return err
			}
		}
		return nil
	})
}

// StartHost starts an AHP host without the sessions of the host before it, and waits
// until it accepts connections.
func (s *Site) StartHost(ctx context.Context) error {
	flags := append([]string{"--listen", s.at(hostPort)}, s.cfg.HostFlags...)
	if !s.cfg.NoRecord {
		file := filepath.Join(s.cfg.Dir, fmt.Sprintf("record-%d", len(s.records)))
		s.records = append(s.records, file)
		flags = append(flags, "--record", file)
	}
	s.Host = s.cfg.Process("", "host", HostProgram, flags...)
	return s.Host.Launch(ctx, func() error { return Reachable(s.at(hostPort)) })
}

// Reachable returns nil if an address accepts connections, and otherwise the reason.
func Reachable(address string) error {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// Token returns a client token for all hosts.
func (s *Site) Token() (string, error) {
	return s.keys.Tokens().IssueClient(auth.Client{
		Tenant: Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite,
		Expires: time.Now().Add(time.Hour),
	})
}

// URL returns the URL at which clients reach the host through the proxy ClientRelay and
// the relay.
func (s *Site) URL() string { return "ws://" + s.at(clientRelayPort) + "/ahp/" + Host }

// RelayURL returns the URL at which clients reach the host through the relay, without
// ClientRelay.
func (s *Site) RelayURL() string { return "ws://" + s.at(relayPort) + "/ahp/" + Host }

// Relays returns the base URLs of all relays. The relay of the clients is the first.
func (s *Site) Relays() []string {
	urls := []string{"http://" + s.at(relayPort)}
	for i := range s.Others {
		urls = append(urls, "http://"+s.other(i))
	}
	return urls
}

// HostURL returns the URL of the host itself.
func (s *Site) HostURL() string { return "ws://" + s.at(hostPort) }

// Records returns the names of the host's record files (see [hostrecord.To]), for each
// run of the host.
func (s *Site) Records() []string { return s.records }

// Verify returns the faults of all processes, see [Bench.Verify].
func (s *Site) Verify() error { return s.cfg.Verify() }

// Close ends all processes and proxies.
func (s *Site) Close() {
	s.cfg.Kill()
	for _, p := range []*faultproxy.Proxy{s.ClientRelay, s.RelayNATS, s.AgentNATS, s.AgentHost} {
		if p != nil {
			p.Close()
		}
	}
	if s.group != nil {
		_ = s.group.Remove() // an error does no harm: the cgroup is empty
	}
}
