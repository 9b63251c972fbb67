package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ahprelay/broker/registry"
	"ahprelay/cmd/internal/agents"
	"ahprelay/cmd/internal/cli"
	"ahprelay/cmd/internal/tracer"
	"ahprelay/contentproxy"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	"ahprelay/internal/awake"
	"ahprelay/internal/memory"
)

type runCmd struct {
	agents.Flags
	serveFlags
	hostFlags
}

// serveFlags configure how a host is served.
type serveFlags struct {
	TakeOver bool `help:"Serve the host even if another host-agent serves it; that host-agent then stops."`
	cli.FrameLimit
	Resume          time.Duration `help:"How long relays, or the host's machine, may be unreachable before connections are closed." default:"${resume}" least:"1s"`
	CanvasLoopback  bool          `help:"Let clients see canvases served on the host's own loopback interface. --no-canvas-loopback disables this." default:"true" negatable:""`
	CanvasDenyPorts []string      `help:"Loopback ports that canvases never show, even if the host names them." placeholder:"PORT" name:"canvas-deny-port"`
	CanvasAllow     []string      `help:"Further origins that the host may show as canvases, beyond http://localhost, 127.0.0.1 and [::1]: https://localhost:*, http://192.168.1.7:3000, http://*.localhost:*. Names are resolved by DNS. Also folders of files: file:///home/ada/project/dist." placeholder:"ORIGIN" name:"canvas-allow"`
	CanvasPins      []string      `help:"SHA-256 fingerprints of the only certificates accepted from the origins in --canvas-allow." placeholder:"HEX" name:"canvas-pin" with:"canvas-allow"`
	CanvasInsecure  bool          `help:"Do not verify the certificates of the origins in --canvas-allow." with:"canvas-allow"`
	CanvasLive      string        `help:"Access to canvases by URL, at relays with a canvas domain: on (as the client's level allows), read (GET and HEAD only) or off." default:"on" enum:"on,read,off"`
	CanvasSockets   bool          `help:"Let clients below the level operate open WebSockets to canvases by URL." name:"canvas-read-sockets"`
	PreviewPorts    []string      `help:"Loopback ports, such as 3000-5999, that clients with the level operate may open by URL, at relays with a canvas domain. Default: none." placeholder:"PORTS" name:"preview-port"`
	MCP             string        `help:"MCP requests that need a capability which client or host did not declare: soft passes them with a warning, strict refuses them. A relay's --strict has priority." default:"soft" enum:"soft,strict" name:"mcp"`
	Compress        string        `help:"Compression towards the relay's /nats: zstd or off." default:"zstd" enum:"zstd,off"`
	MaxQueued       int           `help:"Most memory for the messages of all clients, in bytes. Above it, the host-agent closes the connections that have been stalled longest. Default: a quarter of this process's cgroup memory, or an eighth (at most 536870912) of the machine's memory." least:"262144" placeholder:"BYTES"`
	Sentinel        bool          `help:"Start a small second process that reports a crash of the host-agent to the relays at once. Without it, clients learn of a crash after --resume." default:"true" negatable:""`
	StateDir        string        `help:"Directory for sessions of --agent, keys and devices of --sealed, keys of --remember, and a record with which the next host-agent serves the host at once after a crash. Default: a directory beside --credentials-file, with its name and .state, or one in your state directory. In a container, use a volume. off: keep nothing." type:"path or off" placeholder:"DIR"`
	Sealed          bool          `help:"Seal the host: only paired devices and holders of its links open it, and relays carry its conversations without reading them. Canvases by URL are then off."`
	Console         string        `help:"With --sealed, the console that the link in the QR code opens: a site that the relay does not serve (make console-site). The code is behind #, so no server receives it. Default: a link for ahp-connect." placeholder:"URL" with:"sealed"`
	Notify          string        `help:"Events for notifications: needs (an agent waits for a person), all (also finished and failed turns) or off. Session titles and questions go to the relay, and from there to the notification targets." default:"all" enum:"off,needs,all"`
	NotifyAnswers   string        `help:"Buttons in notifications with which a person answers a request: safe or none. With safe, each has the button to refuse; it also has the button to allow once, if it shows the whole request and the host does not mark the request as dangerous. all means safe." default:"safe" enum:"none,safe,all"`
	Remember        string        `help:"What relays keep for people to read while this host is away, sealed with keys that the relays do not store: turns (the list of sessions and the end of each conversation), titles (the list) or off (nothing; earlier records are removed)." default:"turns" enum:"off,titles,turns"`
	KeepAwake       string        `help:"What keeps this machine from idle sleep: working (a turn that runs), connected (also a connected client with the level talk or higher) or never. Running turns are known only with --notify or --remember." default:"working" enum:"working,connected,never"`
	WakeFor         []string      `help:"Hosts whose machines this host-agent wakes, by Wake-on-LAN on its own networks, when a signed-in person with the level operate asks for it. Their host-agents need --wake-by with this host's name." placeholder:"HOST" name:"wake-for"`
	WakeBy          []string      `help:"Hosts whose host-agents may wake this machine. The relays then keep this machine's hardware addresses." placeholder:"HOST" name:"wake-by"`
	OnBattery       bool          `help:"Keep the machine awake on battery power as well."`
	Control         string        `help:"Unix socket for other commands, such as host-agent clients. Default: one in a directory that only you can read. off: none." placeholder:"PATH"`
	MetricsListen   string        `help:"Address for Prometheus metrics, such as 127.0.0.1:8487. Every process that can connect can read them. Default: none." placeholder:"HOST:PORT"`
	allowFlags
}

// mostQueued is the default for --max-queued on a machine with enough memory, in
// bytes.
const mostQueued = 512 << 20

func (c *runCmd) canvas() (contentproxy.Config, error) {
	cfg := contentproxy.Config{Off: !c.CanvasLoopback, DenyPorts: c.CanvasDenyPorts, Insecure: c.CanvasInsecure}
	for _, text := range c.CanvasDenyPorts {
		if port, err := hostagent.ParsePorts(text); err != nil || port.From != port.To {
			return cfg, fmt.Errorf("--canvas-deny-port %q: want a port such as 3000", text)
		}
	}
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
		return cfg, errors.New("--canvas-insecure and --canvas-pin exclude each other; choose one")
	}
	return cfg, nil
}

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
func (c *runCmd) Run(ctx context.Context, s *streams) (err error) {
	if len(c.Agent) > 0 {
		stop, err := c.startAgents(s)
		if err != nil {
			return err
		}
		defer stop()
	}
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
	if cfg.StateDir, err = c.stateDir(s); err != nil {
		return err
	}
	if cfg.Sealed, err = c.sealing(s); err != nil {
		return err
	}
	cfg.Control = c.controlPath(cfg, s)
	cfg.MetricsListen = c.MetricsListen
	cfg.Allow, cfg.NoReverse, cfg.HostFiles = c.policy(), !c.Reverse, c.HostFiles
	cfg.ApproveOnly = c.ApproveOnly
	cfg.NotifyAnswers = hostagent.NotifyAnswers(c.NotifyAnswers)
	cfg.Notify = hostagent.Notify(c.Notify)
	cfg.Remember = remembering.Mode(c.Remember)
	cfg.KeepAwake, cfg.OnBattery = awake.Mode(c.KeepAwake), c.OnBattery
	cfg.Waking = hostagent.Waking{For: c.WakeFor, By: c.WakeBy}
	cfg.Strict = c.MCP == "strict"
	if c.Compress != "off" {
		cfg.Compress = c.Compress
	}
	if c.Sentinel {
		cfg.Sentinel = sentinelCommand(s)
	}
	defer memory.Start()()
	traces, endTraces, err := tracer.Start(ctx, "ahp-host-agent", s.log)
	if err != nil {
		return err
	}
	defer endTraces()
	cfg.Tracer = traces
	agent, err := hostagent.New(cfg)
	if err != nil {
		return err
	}
	service := (&serviceFlags{System: true, Service: "ahp-host-agent"}).service() // if Windows started this process as one
	if err := service.Run(ctx, agent.Run); errors.Is(err, registry.ErrHostTaken) {
		return fmt.Errorf("%w; stop the other host-agent, or start this one with --take-over", err)
	} else if err != nil {
		return err
	}
	return nil
}

func (c *runCmd) startAgents(s *streams) (stop func(), err error) {
	if c.Upstream != "" {
		return nil, errors.New("--agent and --upstream exclude each other; choose one")
	}
	dir, err := c.stateDir(s) // sessions have a directory for each relay, because a directory can have only one process
	if err != nil {
		return nil, err
	}
	if dir != "" {
		dir = filepath.Join(dir, "sessions-"+plainName(strings.TrimPrefix(c.Relay[0], "http")))
	}
	if c.agents, err = serveAgents(&c.Flags, c.Command, dir, s); err != nil {
		return nil, err
	}
	return func() {
		if err := c.agents.Close(); err != nil {
			s.log.Warn("agents not stopped", "error", err)
		}
	}, nil
}

// stateDir returns the directory of --state-dir, which it creates, or its default, "" for none.
func (c *runCmd) stateDir(s *streams) (string, error) {
	switch {
	case c.StateDir == "off":
		return "", nil
	case c.StateDir != "":
		if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
			return "", fmt.Errorf("--state-dir: %w", err)
		}
		return c.StateDir, nil
	case c.CredentialsFile != "":
		return strings.TrimSuffix(c.CredentialsFile, filepath.Ext(c.CredentialsFile)) + ".state", nil // hosts of two relays may have the same name
	}
	dir, err := stateHome()
	if err != nil {
		s.log.Debug("state directory unavailable", "error", err)
	}
	return dir, nil
}
