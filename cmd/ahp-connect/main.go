// Command ahp-connect is the client's end of a relay, on a person's own machine: it
// signs the person in, and serves the hosts of relays to editors, scripts and agents.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/connect"
)

const description = "Opens the hosts of relays to the programs on this machine: editors, scripts and agents. " +
	"Each flag can also be set by an environment variable (AHP_CONNECT_ and the flag in capitals, with _ for -) and in the file given with --config."

type app struct {
	cli.Common
	homeFlags

	Login  loginCmd  `cmd:"" help:"Sign this machine in at a relay, with a code that a signed-in person approves, or an invitation link. People sign in on the relay's page with OpenID Connect where the relay offers it."`
	Logout logoutCmd `cmd:"" help:"Sign this machine out. Its tokens end at once, on all relays."`
	Access accessCmd `cmd:"" help:"Print a relay's client token, or keep one in a file, for programs that connect without ahp-connect."`

	Up    upCmd    `cmd:"" help:"Serve the hosts of all relays on a loopback address until stopped."`
	Hosts hostsCmd `cmd:"" help:"List the hosts that you may open."`
	URL   urlCmd   `cmd:"" name:"url" help:"Print a host's address at the running ahp-connect up, with a local token."`
	Token tokenCmd `cmd:"" help:"List the local tokens, or make or revoke one. Each client program has a token of its own."`
	Stdio stdioCmd `cmd:"" help:"Speak AHP with a host on standard input and output, one message on each line."`

	Pair    pairCmd    `cmd:"" help:"Pair this machine with a sealed host, by the code that the host shows."`
	Unpair  unpairCmd  `cmd:"" help:"Forget a sealed host's key, for instance after it has changed. The host then opens only after a new pairing."`
	Devices devicesCmd `cmd:"" help:"List the devices of a sealed host that you own, or remove one."`

	Open   openCmd   `cmd:"" help:"Open the console in your browser, served by the running ahp-connect up."`
	VSCode vscodeCmd `cmd:"" name:"vscode" help:"Write hosts into the settings of VS Code on this machine, or remove them."`

	ACP acpCmd `cmd:"" name:"acp" help:"Serve the Agent Client Protocol (ACP) as an agent on standard input and output: an editor that starts this command drives a session on a remote host."`
	MCP mcpCmd `cmd:"" name:"mcp" help:"Serve MCP on standard input and output, so that an agent can watch and drive the agents at your hosts."`

	Install   installCmd   `cmd:"" help:"Install a service of this user's session that runs ahp-connect up (systemd, launchd or a Windows service)."`
	Uninstall uninstallCmd `cmd:"" help:"Remove the service. Sign-ins and local tokens remain."`
	Status    statusCmd    `cmd:"" help:"Report whether the service runs."`
	Doctor    doctorCmd    `cmd:"" help:"Check sign-ins, relays, hosts, clock and port, and name a remedy for each fault."`

	cli.Manual
}

//go:generate go test -run ^TestReferenceListsEachFlag$ . -update

func (a *app) program() cli.Program {
	return cli.Program{App: a, Name: "ahp-connect", Description: description, Prefix: "AHP_CONNECT", Options: []kong.Option{kong.Vars{"listen": connect.DefaultListen}}}
}

// homeFlags select the directory for sign-ins, pairings and local tokens.
type homeFlags struct {
	StateDir string `help:"Directory for sign-ins, pairings and local tokens. Default: one in your state directory." type:"path" placeholder:"DIR"`
	KeyFile  bool   `help:"Keep device keys in files that only you can read, not in the system's key store."`
}

func (f *homeFlags) home() (*connect.Home, error) {
	h := &connect.Home{Dir: f.StateDir}
	if !f.KeyFile {
		h.Keys = connect.SystemKeys{}
	}
	if h.Dir == "" {
		dir, err := cli.StateHome("ahp-connect")
		if err != nil {
			return nil, err
		}
		h.Dir = dir
	}
	return h, nil
}

// streams holds a command's input, outputs, log and home directory.
type streams struct {
	in   io.Reader
	out  io.Writer
	err  io.Writer
	log  *slog.Logger
	home *connect.Home
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var a app
	if err := a.run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		a.Ended(os.Stderr, "ahp-connect", err)
		os.Exit(1)
	}
}

func (a *app) run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	parsed, log, err := a.program().Start(ctx, &a.Common, args, stdout, stderr)
	if parsed == nil || err != nil {
		return err
	}
	home, err := a.home()
	if err != nil {
		return err
	}
	return parsed.Run(&streams{in: stdin, out: stdout, err: stderr, log: log, home: home})
}
