// Command host-agent runs beside a private AHP host and makes it reachable through
// relays. It opens outgoing connections only.
//
//go:debug updatemaxprocs=0
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

const description = "Makes an AHP host reachable through a relay. It opens outgoing connections only. " +
	"Each flag can also be set by an environment variable (AHP_AGENT_ and the flag in capitals, with _ for -) and in the file given with --config."

type app struct {
	cli.Common

	Run runCmd `cmd:"" help:"Serve a host until stopped."`
	Up  upCmd  `cmd:"" help:"Join a relay with a code that a signed-in person approves, find this machine's AHP host, and serve it."`

	Agents    agentsCmd    `cmd:"" help:"List the coding agents of this machine, and how to install the others."`
	AgentHost agentHostCmd `cmd:"" name:"agent-host" help:"Serve coding agents to AHP clients on this machine, without a relay."`

	Install   installCmd   `cmd:"" help:"Install a service that serves the host: for this user's session, or for the machine (systemd, launchd or a Windows service)."`
	Uninstall uninstallCmd `cmd:"" help:"Remove the service."`
	Status    statusCmd    `cmd:"" help:"Report whether the service runs."`
	Update    updateCmd    `cmd:"" help:"Replace this program with the newest release, if the install script installed it. If a service that served its host does not do so again within a minute, the earlier version returns."`

	Check   checkCmd   `cmd:"" help:"Check relay, token and host without serving."`
	Enroll  enrollCmd  `cmd:"" help:"Trade an enrolment token for a credential bound to a key of this machine. The token is then used up."`
	Clients clientsCmd `cmd:"" help:"List the clients at this machine's host."`
	Devices devicesCmd `cmd:"" help:"List the devices of this machine's sealed host, or admit or remove one."`
	Kick    kickCmd    `cmd:"" help:"End a client's connection, or all connections of a subject, and refuse new ones for a while."`

	Share   shareCmd   `cmd:"" help:"Print a link, and its QR code, to one session of this machine's host."`
	Shares  sharesCmd  `cmd:"" help:"List the links to this machine's host, with their present viewers."`
	Unshare unshareCmd `cmd:"" help:"Revoke one link or all links; their connections end at once."`

	cli.Manual

	Sentinel sentinelCmd `cmd:"" hidden:"" help:"Started by host-agent run: reports the host-agent's crash to the relays."`
}

//go:generate go test -run ^TestReferenceListsEachFlag$ . -update

func (a *app) program() cli.Program {
	return cli.Program{App: a, Name: "host-agent", Description: description, Prefix: "AHP_AGENT", Options: programOptions}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var a app
	if err := a.run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		a.Ended(os.Stderr, "host-agent", err)
		os.Exit(exitStatus(err))
	}
}

func exitStatus(err error) int {
	if hostagent.TokenRefused(err) {
		return statusRefused
	}
	return 1
}

func (a *app) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	parsed, log, err := a.program().Start(ctx, &a.Common, args, stdout, stderr)
	if parsed == nil || err != nil {
		return err
	}
	return parsed.Run(&streams{out: stdout, err: stderr, log: log, logs: &a.Common})
}
