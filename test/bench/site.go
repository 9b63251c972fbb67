package bench

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/hostagent"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
	"ahprelay/test/stack"
	"ahprelay/test/testca"
)

// These are a site's ports, at the site's own address.
const (
	relayPort = "8484"
	natsPort  = "4222"
)

// A siteConfig describes a site.
type siteConfig struct {
	name       string   // default: site
	hosts      int      // default 1; the testbed's host serves all of them
	tenants    []string // tenant of each host; default: stack.Tenant for all
	upstreams  []string // URL of each host; default: the testbed's host
	relayFlags []string
	agentFlags []string

	tls bool // the relay's port has TLS

	sealed bool // the host is sealed; one host only

	// together makes all host-agents run in one process, so that there can be many.
	together bool

	// natsTCP makes host-agents connect to NATS over TCP, not through the relay's port.
	natsTCP bool

	// natsListen makes the relay open its NATS listener, for readers.
	natsListen bool

	// between, if not nil, starts a proxy between host-agents and the NATS address target.
	// It returns the proxy's address.
	between func(target string) (string, error)
}

// A site is a relay with embedded NATS, and its host-agents.
type site struct {
	bed     *testbed
	cfg     siteConfig
	address string
	keys    *auth.Keys
	http    *http.Client // trusts the relay's certificate
	relay   *procs.Process
	agents  []*procs.Process  // processes of the host-agents; none with together
	group   *loadgen.Process  // process with all host-agents, with together
	control hostagent.Control // control socket of the sealed host's host-agent
}

// site starts a site, and waits until its hosts are online.
func (b *testbed) site(cfg siteConfig) (*site, error) {
	if cfg.name == "" {
		cfg.name = "site"
	}
	cfg.hosts = max(1, cfg.hosts)
	s := &site{bed: b, cfg: cfg}
	var err error
	if s.address, err = procs.FreeAddress(); err != nil {
		return nil, err
	}
	if err = os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return nil, err
	}
	if s.keys, err = auth.LoadKeys(s.dataDir()); err != nil {
		return nil, err
	}
	if err = s.prepareTLS(); err != nil {
		return nil, err
	}
	relay := []string{"serve", "--data-dir", s.dataDir(), "--listen", s.at(relayPort), "--admin-listen", gateway.NoListener}
	if cfg.natsTCP || cfg.natsListen {
		relay = append(relay, "--nats-listen", s.at(natsPort))
	}
	s.relay = b.bench.Process("", cfg.name+"-relay", procs.RelayProgram, slices.Concat(relay, s.cfg.relayFlags, b.o.RelayFlags)...)
	if err := s.startRelay(); err != nil {
		return nil, err
	}
	return s, s.startAgents()
}

// oneHost starts a site, and also returns the way to its first host.
func (b *testbed) oneHost(cfg siteConfig) (*site, *system, error) {
	s, err := b.site(cfg)
	if err != nil {
		return nil, nil, err
	}
	relay, err := s.system(0)
	return s, relay, err
}

func (s *site) dataDir() string       { return filepath.Join(s.bed.dir, s.cfg.name) }
func (s *site) at(port string) string { return net.JoinHostPort(s.address, port) }
func (s *site) url() string           { return "http" + s.secure() + "://" + s.at(relayPort) }

// secure returns "s", the letter that a URL's scheme has more with TLS, or "".
func (s *site) secure() string {
	if s.cfg.tls {
		return "s"
	}
	return ""
}

// prepareTLS makes a certificate that the site's programs trust, if the site has TLS.
func (s *site) prepareTLS() error {
	s.http = http.DefaultClient
	if !s.cfg.tls {
		return nil
	}
	cert, key, err := testca.WriteFilesFor(net.ParseIP(s.address), s.dataDir())
	if err != nil {
		return err
	}
	s.cfg.relayFlags = append(slices.Clip(s.cfg.relayFlags), "--tls-cert", cert, "--tls-key", key)
	s.bed.bench.Env = append(slices.Clip(s.bed.bench.Env), "SSL_CERT_FILE="+cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	s.http = &http.Client{Transport: transport}
	s.bed.ends = append(s.bed.ends, transport.CloseIdleConnections)
	return nil
}

// startRelay starts the relay, and waits until it accepts clients.
func (s *site) startRelay() error {
	return s.relay.Launch(s.bed.ctx, func() error { return procs.Ready(s.http, s.url()) })
}

// hostName returns the name of host i.
func hostName(i int) string { return fmt.Sprintf("host-%d", i) }

// startAgents starts all host-agents, and waits until all hosts are online.
func (s *site) startAgents() error {
	if s.cfg.together {
		return s.startTogether()
	}
	for i := range s.cfg.hosts {
		if err := s.addAgent(i); err != nil {
			return err
		}
	}
	for i, agent := range s.agents {
		tokens, err := s.tokens(i)
		if err != nil {
			return err
		}
		if err := s.online(i, agent, tokens[0]); err != nil {
			return err
		}
	}
	return nil
}

// atOnce is how many host-agents in one process connect at the same time, which is the
// relay's limit for an address.
const atOnce = 50

// startTogether is startAgents with all host-agents in one process.
func (s *site) startTogether() (err error) {
	if s.group, err = s.bed.start(s.cfg.name+"-agents", loadgen.AgentsRole); err != nil {
		return err
	}
	return s.comeTogether(0)
}

// comeTogether starts the host-agents of host i and all later hosts, in the process of
// startTogether. It returns when these hosts are online.
func (s *site) comeTogether(i int) error {
	tokens, err := s.tokens(0)
	if err != nil {
		return err
	}
	for first := i; first < s.cfg.hosts; first += atOnce {
		for i := first; i < min(first+atOnce, s.cfg.hosts); i++ {
			token, err := s.hostToken(i)
			if err != nil {
				return err
			}
			args := loadgen.AgentArgs{Relay: s.url(), Token: token, Upstream: s.upstream(i), Compress: broker.Zstandard}
			if err := s.group.Call("Agents.Run", args, &loadgen.None{}); err != nil {
				return err
			}
		}
		for i := first; i < min(first+atOnce, s.cfg.hosts); i++ {
			if err := s.online(i, nil, tokens[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *site) hostToken(i int) (string, error) {
	return s.keys.Tokens().IssueHost(auth.Enrolment{Tenant: s.tenant(i), Host: hostName(i), Expires: time.Now().Add(time.Hour)})
}

// addAgent starts the host-agent of host i, and waits until the host is online.
func (s *site) addAgent(i int) error {
	token, err := s.hostToken(i)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dataDir(), hostName(i)+".token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	flags := []string{"run", "--relay", s.url(), "--token-file", file, "--upstream", s.upstream(i)}
	if s.cfg.natsTCP {
		nats := s.at(natsPort)
		if s.cfg.between != nil {
			if nats, err = s.cfg.between(nats); err != nil {
				return err
			}
		}
		flags = append(flags, "--nats-url", "nats://"+nats)
	} else if s.cfg.between != nil {
		through, err := s.cfg.between(s.at(relayPort))
		if err != nil {
			return err
		}
		flags[2] = "http://" + through
	}
	more, err := s.sealedFlags()
	if err != nil {
		return err
	}
	agent := s.bed.bench.Process("", fmt.Sprintf("%s-%s-agent", s.cfg.name, hostName(i)), procs.AgentProgram, slices.Concat(flags, more, s.cfg.agentFlags, s.bed.o.AgentFlags)...)
	s.agents = append(s.agents, agent)
	return agent.Start()
}

// online waits until host i is online. It fails if the host-agent's process ends.
func (s *site) online(i int, agent *procs.Process, token string) error {
	return await(s.bed.ctx, func() error {
		err := s.state(i, token)
		if err == nil {
			return nil
		}
		if agent != nil && agent.Pid() == 0 {
			return stop(fmt.Errorf("host-agent of %s has ended:\n%s", hostName(i), agent.Log()))
		}
		return err
	})
}

// state returns an error unless the relay reports host i as online.
func (s *site) state(i int, token string) error {
	info, err := procs.GetJSONBy[hostsapi.Info](s.bed.ctx, s.http, s.url()+"/api/hosts/"+hostName(i), token)
	if err == nil && info.State != "online" {
		err = fmt.Errorf("%s is %s: %s", hostName(i), info.State, info.Reason)
	}
	return err
}

// subjects is the number of different subjects among a site's clients. The relay limits
// what each subject may use.
const subjects = 16

func (s *site) tenant(i int) string {
	if len(s.cfg.tenants) == 0 {
		return stack.Tenant
	}
	return s.cfg.tenants[i]
}

func (s *site) upstream(i int) string {
	if len(s.cfg.upstreams) == 0 {
		return s.bed.hostURL
	}
	return s.cfg.upstreams[i]
}

// tokens returns client tokens for all hosts in the tenant of host i, one for each
// subject.
func (s *site) tokens(i int) (tokens []string, err error) {
	for n := range subjects {
		token, err := s.keys.Tokens().IssueClient(auth.Client{
			Tenant: s.tenant(i), Subject: fmt.Sprintf("ada-%d", n), Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
		})
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}

// end stops all processes of the site.
func (s *site) end() {
	if s.group != nil {
		s.group.Close()
	}
	for _, agent := range s.agents {
		agent.Kill()
	}
	s.relay.Kill()
}

// system returns the way through the relay to host i.
func (s *site) system(i int) (*system, error) {
	tokens, err := s.tokens(i)
	way := &system{
		name: "relay", kind: loadgen.AHP, url: "ws" + s.secure() + "://" + s.at(relayPort) + "/ahp/" + hostName(i), tokens: tokens, pid: s.relay.Pid(),
	}
	if err == nil && s.cfg.sealed {
		way.seal, err = s.pair()
	}
	return way, err
}

// These are the names of systems with which the relay is compared.
const (
	directName = "straight on the host"
	natsName   = "nats-server WebSocket"
)

// direct returns the way to the testbed's host without a relay.
func (b *testbed) direct() *system {
	return &system{name: directName, kind: loadgen.AHP, url: b.hostURL, pid: b.host.Pid()}
}

// natsServer starts a separate NATS server. Clients use its WebSocket listener.
func (b *testbed) natsServer() (*system, error) { return b.startNATS("nats-server", "", "") }

// startNATS is natsServer with a name for its files. If there is a certificate, the
// WebSocket listener has TLS.
func (b *testbed) startNATS(name, cert, key string) (*system, error) {
	address, err := procs.FreeAddress()
	if err != nil {
		return nil, err
	}
	client, ws := net.JoinHostPort(address, natsPort), net.JoinHostPort(address, relayPort)
	config := filepath.Join(b.dir, name+".conf")
	security, scheme := "no_tls: true", "ws://"
	if cert != "" {
		security, scheme = fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key), "wss://"
	}
	text := fmt.Sprintf("listen: %q\nserver_name: bench\nwebsocket {\n  listen: %q\n  %s\n}\n", client, ws, security)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p := b.bench.Process("", name, procs.NATSProgram, "-c", config)
	if err := p.Launch(b.ctx, func() error { return reachable(client, ws) }); err != nil {
		return nil, err
	}
	return &system{name: natsName, kind: loadgen.NATS, url: scheme + ws, nats: "nats://" + client, pid: p.Pid(), stop: p.Kill}, nil
}

func reachable(addresses ...string) error {
	for _, a := range addresses {
		c, err := net.DialTimeout("tcp", a, time.Second)
		if err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// writer starts a server that writes each message to each client separately.
func (b *testbed) writer() (*system, error) {
	return b.startWriter("writer", loadgen.WriterRole, "conn.Write each")
}

// together starts a server that only writes: for each client, it writes all waiting
// messages at once.
func (b *testbed) together() (*system, error) {
	return b.startWriter("together", loadgen.TogetherRole, "a server that only writes")
}

func (b *testbed) startWriter(name, role, called string) (*system, error) {
	p, err := b.start(name, role)
	if err != nil {
		return nil, err
	}
	var at loadgen.WriterAddresses
	if err := p.Call(role+".Addresses", loadgen.None{}, &at); err != nil {
		return nil, err
	}
	return &system{name: called, kind: loadgen.Plain, url: at.URL, feed: at.Feed, pid: p.Pid(), stop: p.Close}, nil
}
