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
	"ahprelay/hostagent"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
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
	between func(target string) string
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
func (b *testbed) site(cfg siteConfig) *site {
	if cfg.name == "" {
		cfg.name = "site"
	}
	cfg.hosts = max(1, cfg.hosts)
	s := &site{bed: b, cfg: cfg}
	s.address = must.Get(procs.FreeAddress())
	must.Do(os.MkdirAll(s.dataDir(), 0o700))
	s.keys = must.Get(auth.LoadKeys(s.dataDir()))
	s.prepareTLS()
	relay := []string{"serve", "--data-dir", s.dataDir(), "--listen", s.at(relayPort), "--admin-listen", gateway.NoListener}
	if cfg.natsTCP || cfg.natsListen {
		relay = append(relay, "--nats-listen", s.at(natsPort))
	}
	s.relay = b.bench.Process("", cfg.name+"-relay", procs.RelayProgram, slices.Concat(relay, s.cfg.relayFlags, b.o.RelayFlags)...)
	s.startRelay()
	s.startAgents()
	return s
}

// oneHost starts a site, and also returns the way to its first host.
func (b *testbed) oneHost(cfg siteConfig) (*site, *system) {
	s := b.site(cfg)
	return s, s.system(0)
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
func (s *site) prepareTLS() {
	s.http = http.DefaultClient
	if !s.cfg.tls {
		return
	}
	cert, key, err := testca.WriteFilesFor(net.ParseIP(s.address), s.dataDir())
	must.Do(err)
	s.cfg.relayFlags = append(slices.Clip(s.cfg.relayFlags), "--tls-cert", cert, "--tls-key", key)
	s.bed.bench.Env = append(slices.Clip(s.bed.bench.Env), "SSL_CERT_FILE="+cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	s.http = &http.Client{Transport: transport}
	s.bed.ends = append(s.bed.ends, transport.CloseIdleConnections)
}

// startRelay starts the relay, and waits until it accepts clients.
func (s *site) startRelay() {
	must.Do(s.relay.Launch(s.bed.ctx, func() error { return procs.Ready(s.http, s.url()) }))
}

// hostName returns the name of host i.
func hostName(i int) string { return fmt.Sprintf("host-%d", i) }

// startAgents starts all host-agents, and waits until all hosts are online.
func (s *site) startAgents() {
	if s.cfg.together {
		s.group = s.bed.start(s.cfg.name+"-agents", loadgen.AgentsRole)
		s.comeTogether(0)
		return
	}
	for i := range s.cfg.hosts {
		s.addAgent(i)
	}
	for i, agent := range s.agents {
		s.online(i, agent, s.tokens(i)[0])
	}
}

// atOnce is how many host-agents in one process connect at the same time, which is the
// relay's limit for an address.
const atOnce = 50

// comeTogether starts the host-agents of host i and all later hosts in one process. It
// returns when these hosts are online.
func (s *site) comeTogether(i int) {
	viewer := s.tokens(0)[0]
	for first := i; first < s.cfg.hosts; first += atOnce {
		for i := first; i < min(first+atOnce, s.cfg.hosts); i++ {
			args := loadgen.AgentArgs{Relay: s.url(), Token: s.hostToken(i), Upstream: s.upstream(i), Compress: broker.Zstandard}
			must.Do(s.group.Call("Agents.Run", args, &loadgen.None{}))
		}
		for i := first; i < min(first+atOnce, s.cfg.hosts); i++ {
			s.online(i, nil, viewer)
		}
	}
}

func (s *site) hostToken(i int) string {
	return must.Get(s.keys.Tokens().IssueHost(auth.Enrolment{Tenant: s.tenant(i), Host: hostName(i), Expires: time.Now().Add(time.Hour)}))
}

// addAgent starts the host-agent of host i, and waits until the host is online.
func (s *site) addAgent(i int) {
	file := filepath.Join(s.dataDir(), hostName(i)+".token")
	must.Do(os.WriteFile(file, []byte(s.hostToken(i)), 0o600))
	flags := []string{"run", "--relay", s.url(), "--token-file", file, "--upstream", s.upstream(i)}
	if s.cfg.natsTCP {
		nats := s.at(natsPort)
		if s.cfg.between != nil {
			nats = s.cfg.between(nats)
		}
		flags = append(flags, "--nats-url", "nats://"+nats)
	} else if s.cfg.between != nil {
		flags[2] = "http://" + s.cfg.between(s.at(relayPort))
	}
	agent := s.bed.bench.Process("", fmt.Sprintf("%s-%s-agent", s.cfg.name, hostName(i)), procs.AgentProgram, slices.Concat(flags, s.sealedFlags(), s.bed.o.AgentFlags)...)
	s.agents = append(s.agents, agent)
	must.Do(agent.Start())
}

// online waits until host i is online. It fails if the host-agent's process ends.
func (s *site) online(i int, agent *procs.Process, token string) {
	await(s.bed.ctx, func() error {
		err := s.state(i, token)
		if err != nil && agent != nil && agent.Pid() == 0 {
			must.Fail("host-agent of %s has ended:\n%s", hostName(i), agent.Log())
		}
		return err
	})
}

// state returns an error unless the relay reports host i as online.
func (s *site) state(i int, token string) error {
	return procs.Online(s.bed.ctx, s.http, s.url(), hostName(i), token)
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
func (s *site) tokens(i int) []string {
	return s.issue(auth.Client{Tenant: s.tenant(i), Subject: "ada", Access: auth.AccessWrite})
}

// issue returns tokens with c's authority for all hosts, one for each subject.
func (s *site) issue(c auth.Client) (tokens []string) {
	subject := c.Subject
	c.Hosts, c.Expires = []string{auth.AllHosts}, time.Now().Add(time.Hour)
	for n := range subjects {
		c.Subject = fmt.Sprintf("%s-%d", subject, n)
		tokens = append(tokens, must.Get(s.keys.Tokens().IssueClient(c)))
	}
	return tokens
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
func (s *site) system(i int) *system {
	way := &system{
		name: "relay", kind: loadgen.AHP, url: "ws" + s.secure() + "://" + s.at(relayPort) + "/ahp/" + hostName(i), tokens: s.tokens(i), pid: s.relay.Pid(),
	}
	if s.cfg.sealed {
		way.seal = s.pair()
	}
	return way
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
func (b *testbed) natsServer() *system { return b.startNATS("nats-server", "", "") }

// startNATS is natsServer with a name for its files. If there is a certificate, the
// WebSocket listener has TLS.
func (b *testbed) startNATS(name, cert, key string) *system {
	address := must.Get(procs.FreeAddress())
	client, ws := net.JoinHostPort(address, natsPort), net.JoinHostPort(address, relayPort)
	config := filepath.Join(b.dir, name+".conf")
	security, scheme := "no_tls: true", "ws://"
	if cert != "" {
		security, scheme = fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key), "wss://"
	}
	text := fmt.Sprintf("listen: %q\nserver_name: bench\nwebsocket {\n  listen: %q\n  %s\n}\n", client, ws, security)
	must.Do(os.WriteFile(config, []byte(text), 0o600))
	p := b.bench.Process("", name, procs.NATSProgram, "-c", config)
	must.Do(p.Launch(b.ctx, func() error { return reachable(client, ws) }))
	return &system{name: natsName, kind: loadgen.NATS, url: scheme + ws, nats: "nats://" + client, pid: p.Pid(), stop: p.Kill}
}

func reachable(addresses ...string) error {
	for _, a := range addresses {
		if err := procs.Reachable(a); err != nil {
			return err
		}
	}
	return nil
}

// writer starts a server that writes each message to each client separately.
func (b *testbed) writer() *system {
	return b.startWriter("writer", loadgen.WriterRole, "conn.Write each")
}

// together starts a server that only writes: for each client, it writes all waiting
// messages at once.
func (b *testbed) together() *system {
	return b.startWriter("together", loadgen.TogetherRole, "a server that only writes")
}

func (b *testbed) startWriter(name, role, called string) *system {
	p := b.start(name, role)
	var at loadgen.WriterAddresses
	must.Do(p.Call(role+".Addresses", loadgen.None{}, &at))
	return &system{name: called, kind: loadgen.Plain, url: at.URL, feed: at.Feed, pid: p.Pid(), stop: p.Close}
}
