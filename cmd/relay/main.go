// Command relay runs an AHP relay, and administers it.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/alecthomas/kong"

	"ahprelay/broker/link"
	"ahprelay/cmd/internal/cli"
	"ahprelay/gateway"
)

const description = "A relay for the Agent Host Protocol: clients reach agent hosts behind NAT, over NATS. " +
	"Each flag can also be set by an environment variable (AHP_RELAY_ and the flag in capitals, with _ for -) and in the file given with --config."

type app struct {
	cli.Common

	Serve serveCmd `cmd:"" help:"Run a relay."`
	Demo  demoCmd  `cmd:"" help:"Run a relay, a demo host and its host-agent in one process, and print the console's address."`
	Token struct {
		Client clientTokenCmd `cmd:"" help:"Print a token for a client."`
		Host   hostTokenCmd   `cmd:"" help:"Print an enrolment token for a host-agent. It serves one host."`
	} `cmd:"" help:"Print a token."`
	Share       shareCmd       `cmd:"" help:"Print a link, and its QR code, that opens the console at one session."`
	Revoke      revokeCmd      `cmd:"" help:"Revoke a token, or everything issued to a subject or host, with all grants derived from it. Connections end at once, on all relays."`
	Revocations revocationsCmd `cmd:"" help:"List revocations."`

	Audit auditCmd `cmd:"" help:"Verify or export audit files."`

	SetupLink setupLinkCmd `cmd:"" help:"Print a link that makes its first visitor a relay owner, for a new relay or after the last device was lost."`

	Invitations invitationsCmd `cmd:"" help:"List open invitations."`
	Withdraw    withdrawCmd    `cmd:"" help:"Withdraw an open invitation. Its link stops working."`

	Login  movedCmd `cmd:"" hidden:"" help:"Moved to ahp-connect login."`
	Access movedCmd `cmd:"" hidden:"" help:"Moved to ahp-connect access."`
	Logout movedCmd `cmd:"" hidden:"" help:"Moved to ahp-connect logout."`

	NATSTail        natsTailCmd        `cmd:"" name:"nats-tail" help:"Print a host's notifications from NATS as JSON lines."`
	NATSCredentials natsCredentialsCmd `cmd:"" name:"nats-credentials" help:"Print NATS credentials for reading channel notifications: nats sub 'ahp.v1.default.laptop.chan.>' --creds FILE."`

	Hosts    hostsCmd  `cmd:"" help:"List the hosts known to the running relay."`
	Forget   forgetCmd `cmd:"" help:"Make all relays forget an offline host."`
	Settings struct {
		Check configCheckCmd `cmd:"" help:"Check a configuration file for relay serve, without starting a relay."`
	} `cmd:"" name:"config" help:"Check a configuration file."`
	Keys    keysCmd    `cmd:"" help:"Replace a relay's keys while it runs."`
	Backup  backupCmd  `cmd:"" help:"Write a data directory's keys and state into one file. The relay may be running."`
	Restore restoreCmd `cmd:"" help:"Create a data directory from a file written by relay backup."`
	Diag    diagCmd    `cmd:"" help:"Collect diagnostic data, without secrets, into one file."`
	Check   checkCmd   `cmd:"" help:"Check a relay's keys, readiness and hosts."`

	cli.Manual
}

//go:generate go test -run ^TestReferenceListsEachFlag$ . -update

func (a *app) program() cli.Program {
	return cli.Program{App: a, Name: "relay", Description: description, Prefix: "AHP_RELAY", Options: []kong.Option{parseVars}}
}

// streams holds a command's outputs, log and settings.
type streams struct {
	out io.Writer
	err io.Writer
	log *slog.Logger

	logs     *cli.Common       // the settings of log
	settings map[string]string // of all flags, without secrets
}

// parseVars are placeholders in help texts.
var parseVars = kong.Vars{"listen": gateway.DefaultListen, "admin_listen": gateway.DefaultAdminListen, "limits": limitHelp, "resume": link.DefaultResume.String(), "share_connections": strconv.Itoa(shareConnections)}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var a app
	if err := a.run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		a.Ended(os.Stderr, "relay", err)
		os.Exit(1)
	}
}

func (a *app) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	parsed, log, err := a.program().Start(ctx, &a.Common, args, stdout, stderr)
	if parsed == nil || err != nil {
		return err
	}
	return parsed.Run(&streams{out: stdout, err: stderr, log: log, logs: &a.Common, settings: cli.Settings(parsed)})
}
