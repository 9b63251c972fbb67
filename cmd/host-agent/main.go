// Command host-agent runs beside a private AHP host and makes it reachable
// through relays. It dials out only.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ahprelay/broker/registry"
	"ahprelay/cmd/internal/cli"
	"ahprelay/contentproxy"
	"ahprelay/hostagent"
	"ahprelay/internal/memory"
)

const description = "Makes an AHP host reachable through a relay, without a way in: it dials out only. " +
	"Every flag can also be set in the environment as AHP_AGENT_ and its name in capitals with _ for -, and in the file that --config names."

type app struct {
	cli.Common

	Run runCmd `cmd:"" help:"Serve a host until stopped."`
	Up  upCmd  `cmd:"" help:"Join a relay by a code that somebody approves there, find the AHP host of this machine, and serve it."`

	Install   installCmd   `cmd:"" help:"Have the system run it: with this user's session, or with the machine (systemd, launchd, Windows services and others)."`
	Uninstall uninstallCmd `cmd:"" help:"Have the system forget that."`
	Status    statusCmd    `cmd:"" help:"Say whether the system runs it."`

	Check   checkCmd   `cmd:"" help:"Look for what is wrong with relay, token and host, without serving."`
	Enroll  enrollCmd  `cmd:"" help:"Trade an enrolment token, which is used up, for a credential that is bound to a key of this machine's own."`
	Clients clientsCmd `cmd:"" help:"List who is connected to the host through the host-agent that runs here."`
	Kick    kickCmd    `cmd:"" help:"End the connection of a client, or all of a subject, and keep them away for a while."`

	Share   shareCmd   `cmd:"" help:"Print a link, and a QR code of it, that opens the console at one session of this machine's host."`
	Shares  sharesCmd  `cmd:"" help:"List the links to this machine's host, and who is there by them now."`
	Unshare unshareCmd `cmd:"" help:"Take one link back, or all: who is there is gone at once."`

	cli.Manual

	Sentinel sentinelCmd `cmd:"" hidden:"" help:"Started by run: tells relays if that crashes."`
}

//go:generate go test -run ^TestReference$ . -update

// program describes the flags.
func (a *app) program() cli.Program {
	return cli.Program{App: a, Name: "host-agent", Description: description, Prefix: "AHP_AGENT"}
}

// streams is where a command writes.
type streams struct {
	out io.Writer
	err io.Writer
	log *slog.Logger

	logs *cli.Common // how log is
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var a app
	if err := a.run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		a.Ended(os.Stderr, "host-agent", err)
		os.Exit(1)
	}
}

func (a *app) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	parsed, err := a.program().Parse(args, stdout, stderr)
	if parsed == nil || err != nil {
		return err
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	return parsed.Run(&streams{out: stdout, err: stderr, log: a.Logger(stderr), logs: &a.Common})
}

// hostFlags say which host is served, and through which relay.
type hostFlags struct {
	Relay             []string `help:"Base URL of the relay. Give it several times for the relays of a cluster: the host-agent goes from one to the next." required:"" placeholder:"URL"`
	TokenFile         string   `help:"File with the enrolment token (relay token host)." xor:"token" required:"" type:"path" placeholder:"FILE"`
	CredentialsFile   string   `help:"File that host-agent enroll has written, in place of --token-file. The host-agent renews what is in it." xor:"token" required:"" type:"path" placeholder:"FILE"`
	Upstream          string   `help:"Where the AHP host is: ws://, wss:// or unix:/path, or lock:/path of VS Code's lock file. Or give a command behind --, which speaks AHP on its standard input and output and is started for each client." placeholder:"URL"`
	UpstreamTokenFile string   `help:"File with the connection token that the host wants (?tkn=)." type:"path" placeholder:"FILE"`
	NATSURL           []string `help:"Where NATS is, if not behind the relay: nats://, tls://, ws:// or wss://. May be given several times, for the servers of a cluster." placeholder:"URL" name:"nats-url"`
	plainFlag
	Command []string `arg:"" optional:"" passthrough:"" help:"Command that is the host."`
}

// plainFlag lets secrets pass a network.
type plainFlag struct {
	RelayPlain bool `help:"Allow http:// to relays, and nats:// or ws:// to NATS, on other than loopback addresses. Only where the network is private: who can read there has the token and sees all that passes."`
}

func (f *hostFlags) config(s *streams) (cfg hostagent.Config, err error) {
	command := f.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	cfg = hostagent.Config{
		Relays: f.Relay, NATSURLs: f.NATSURL, Plain: f.RelayPlain, Token: f.token, Version: cli.BuildVersion(), Log: s.log,
		Upstream: hostagent.Upstream{URL: f.Upstream, Command: command, TokenFile: f.UpstreamTokenFile, Stderr: s.err},
	}
	if f.CredentialsFile != "" {
		if cfg.Credentials, err = hostagent.OpenCredentialFile(f.CredentialsFile); err == nil {
			cfg.Token = cfg.Credentials.Token
		}
	}
	return cfg, err
}

// token reads the enrolment token, which may be replaced while the host-agent
// runs.
func (f *hostFlags) token() (string, error) {
	b, err := os.ReadFile(f.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return onlyToken(b, f.TokenFile)
}

// onlyToken returns the token of a token file.
func onlyToken(b []byte, file string) (string, error) {
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", errors.New("--token-file " + file + " is empty; want what relay token host prints")
	}
	return token, nil
}

type runCmd struct {
	serveFlags
	hostFlags
}

// serveFlags say how a host is served.
type serveFlags struct {
	TakeOver bool `help:"Serve the host even if another host-agent does, which then stops."`
	cli.FrameLimit
	Resume          time.Duration `help:"How long relays, or the machine of the host, may be out of reach before connections are given up." default:"15s"`
	CanvasLoopback  bool          `help:"Let clients see canvases that the host serves on its own loopback interface. --no-canvas-loopback turns it off." default:"true" negatable:""`
	CanvasDenyPorts []string      `help:"Ports of the loopback interface that canvases never show, whatever the host says." placeholder:"PORT" name:"canvas-deny-port"`
	CanvasAllow     []string      `help:"Origins beyond http://localhost, 127.0.0.1 and [::1] that canvases may show, if the host says so: https://localhost:*, http://192.168.1.7:3000, http://*.localhost:*. What a name means, DNS says. Or a folder whose files they may show, if the host says so: file:///home/ada/project/dist." placeholder:"ORIGIN" name:"canvas-allow"`
	CanvasPins      []string      `help:"SHA-256 of the certificates that such origins must have; others are refused then." placeholder:"HEX" name:"canvas-pin"`
	CanvasInsecure  bool          `help:"Do not look at the certificates of such origins."`
	CanvasLive      string        `help:"What clients may do with canvases by URL, where a relay has a domain for them: on, what they may do with them otherwise; read, look; off, nothing." default:"on" enum:"on,read,off"`
	CanvasSockets   bool          `help:"Let clients that may only look open WebSockets to canvases by URL." name:"canvas-read-sockets"`
	PreviewPorts    []string      `help:"Ports of the loopback interface, such as 3000-5999, that clients who may operate the host may open by URL, where a relay has a domain for canvases. Default: none." placeholder:"PORTS" name:"preview-port"`
	MCP             string        `help:"What becomes of requests that host or client have not declared: soft lets them pass and warns, strict refuses them. A relay may ask for strict, too." default:"soft" enum:"soft,strict" name:"mcp"`
	Compress        string        `help:"How what goes to a relay is compressed, through its /nats: zstd, or off." default:"zstd" enum:"zstd,off"`
	MaxQueued       int           `help:"Bytes that may wait for all clients together; above, the connections are closed that have stood still for longest. Default: a quarter of the memory of this process's cgroup, or an eighth of the machine's and at most 536870912." placeholder:"BYTES"`
	Sentinel        bool          `help:"Start a second, small process that tells relays if this one crashes. Without it clients hear of a crash when the resume time is over." default:"true" negatable:""`
	StateDir        string        `help:"Directory where it is noted which host-agent runs, so that the next one serves at once after a crash: by default that of --credentials-file, or one in your state directory. In a container a volume. off for none." placeholder:"DIR"`
	Notify          string        `help:"Of what people are told while they look at nothing: needs, that an agent waits for somebody; all, and that it is done or has failed; or off. Titles of sessions and what is asked go to the relay, and from there where people have set." default:"all" enum:"off,needs,all"`
	NotifyAnswers   string        `help:"What a notification offers to answer: safe, to allow once what it shows whole and the host does not call dangerous, and to refuse anything; or none. The value all means safe." default:"safe" enum:"none,safe,all"`
	Control         string        `help:"Where host-agent clients and kick reach this host-agent: a Unix socket, by default in a directory that is yours alone. off for none." placeholder:"PATH"`
	PublishAll      bool          `help:"Publish what only one client is sent on the subject of its channel, too, for who watches NATS with relay nats-credentials. Costs two messages of NATS for one, and at relay and host-agent about twice the processor time of such messages without the kernel's part."`
	MetricsListen   string        `help:"Address for metrics (Prometheus), such as 127.0.0.1:8486: whoever reaches it reads them. Default: none." placeholder:"HOST:PORT"`
	allowFlags
}

// mostQueued is how much of a machine's memory clients get by default at most,
// in bytes.
const mostQueued = 512 << 20

// canvas is what canvases may show.
func (c *runCmd) canvas() (contentproxy.Config, error) {
	cfg := contentproxy.Config{Off: !c.CanvasLoopback, DenyPorts: c.CanvasDenyPorts, Insecure: c.CanvasInsecure}
	for _, text := range c.CanvasAllow {
		allowed, err := contentproxy.ParseAllowed(text)
		if err != nil {
			return cfg, fmt.Errorf("--canvas-allow: %w", err)
		}
		cfg.Allow = append(cfg.Allow, allowed)
	}
	for _, text := range c.CanvasPins {
		pin, err := contentproxy.ParsePin(text)
		if err != nil {
			return cfg, fmt.Errorf("--canvas-pin: %w", err)
		}
		cfg.Pins = append(cfg.Pins, pin)
	}
	if cfg.Insecure && len(cfg.Pins) > 0 {
		return cfg, errors.New("--canvas-insecure and --canvas-pin: certificates are looked at, or not; choose one")
	}
	return cfg, nil
}

// previewPorts are those that clients may open.
func (c *runCmd) previewPorts() (list []hostagent.PortRange, err error) {
	for _, text := range c.PreviewPorts {
		ports, err := hostagent.ParsePorts(text)
		if err != nil {
			return nil, fmt.Errorf("--preview-port: %w", err)
		}
		list = append(list, ports)
	}
	return list, nil
}

// Run serves a host until ctx ends.
func (c *runCmd) Run(ctx context.Context, s *streams) error {
	cfg, err := c.config(s)
	if err != nil {
		return err
	}
	if cfg.MaxQueued, err = cli.UseMemory(s.log).Queued(c.MaxQueued, mostQueued); err != nil {
		return err
	}
	cfg.TakeOver, cfg.MaxFrame, cfg.Resume = c.TakeOver, c.MaxFrame, c.Resume
	if cfg.Canvas, err = c.canvas(); err != nil {
		return err
	}
	if cfg.PreviewPorts, err = c.previewPorts(); err != nil {
		return err
	}
	cfg.CanvasLive, cfg.CanvasSockets = hostagent.CanvasLive(c.CanvasLive), c.CanvasSockets
	cfg.StateDir = c.stateDir(s)
	cfg.Control = c.controlPath(cfg.Token, s)
	cfg.MetricsListen, cfg.PublishAll = c.MetricsListen, c.PublishAll
	cfg.Allow, cfg.NoReverse, cfg.HostFiles = c.policy(), !c.Reverse, c.HostFiles
	cfg.ApproveOnly = c.ApproveOnly
	cfg.NotifyAnswers = hostagent.NotifyAnswers(c.NotifyAnswers)
	cfg.Notify = hostagent.Notify(c.Notify)
	cfg.Strict = c.MCP == "strict"
	if c.Compress != "off" {
		cfg.Compress = c.Compress
	}
	if c.Sentinel {
		cfg.Sentinel = sentinelCommand(s)
	}
	defer memory.Start()()
	tracer, endTraces, err := cli.Tracer(ctx, "ahp-host-agent", s.log)
	if err != nil {
		return err
	}
	defer endTraces()
	cfg.Tracer = tracer
	agent, err := hostagent.New(cfg)
	if err != nil {
		return err
	}
	if err := asService(ctx, agent.Run); errors.Is(err, registry.ErrHostTaken) {
		return fmt.Errorf("%w; stop that one, or start this one with --take-over", err)
	} else if err != nil {
		return err
	}
	return nil
}

// stateDir is where it is noted which host-agent runs; "" for nowhere.
func (c *runCmd) stateDir(s *streams) string {
	switch {
	case c.StateDir == "off":
		return ""
	case c.StateDir != "":
		return c.StateDir
	case c.CredentialsFile != "":
		return filepath.Dir(c.CredentialsFile)
	}
	dir, err := stateHome()
	if err != nil {
		s.log.Debug("no state directory", "error", err)
	}
	return dir
}

type checkCmd struct {
	hostFlags
}

// Run looks at one thing after the other, and stops at the first that is
// wrong, with what to do about it.
func (c *checkCmd) Run(ctx context.Context, s *streams) error {
	cfg, err := c.config(s)
	if err != nil {
		return err
	}
	agent, err := hostagent.New(cfg)
	if err != nil {
		return err
	}
	return agent.Check(ctx, func(said string) { fmt.Fprintln(s.out, "ok ", said) })
}
