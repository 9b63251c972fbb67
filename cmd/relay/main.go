// Command relay is the public endpoint of an AHP relay, and the tool of who
// runs it.
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

	"ahprelay/cmd/internal/cli"
	"ahprelay/gateway"
)

const description = "A relay for the Agent Host Protocol: clients reach agent hosts behind NAT, over NATS. " +
	"Every flag can also be set in the environment as AHP_RELAY_ and its name in capitals with _ for -, and in the file that --config names."

type app struct {
	cli.Common

	Serve serveCmd `cmd:"" help:"Run a relay."`
	Demo  demoCmd  `cmd:"" help:"Run a relay, a demo host and its host-agent in this process, and print where to look at it."`
	Token struct {
		Client clientTokenCmd `cmd:"" help:"Print a token for a client: it opens hosts."`
		Host   hostTokenCmd   `cmd:"" help:"Print an enrolment token for a host-agent: it serves one host."`
	} `cmd:"" help:"Print a token, and nothing else."`
	Share       shareCmd       `cmd:"" help:"Print a link, and a QR code of it, that opens the console at one session."`
	Revoke      revokeCmd      `cmd:"" help:"Take back a token, or all that a subject or a host has got, with everything that was derived from it: its connections end at once, on all relays."`
	Revocations revocationsCmd `cmd:"" help:"List what is revoked."`

	Audit auditCmd `cmd:"" help:"Look at audit files."`

	SetupLink setupLinkCmd `cmd:"" help:"Print a link by which somebody comes to own the relay: the first, or who has lost the last device."`

	Invitations invitationsCmd `cmd:"" help:"List the open invitations."`
	Withdraw    withdrawCmd    `cmd:"" help:"Withdraw an open invitation: its link lets nobody in any more."`

	Login  loginCmd  `cmd:"" help:"Sign this machine in at a relay, by a code that somebody approves who is signed in there."`
	Access accessCmd `cmd:"" help:"Print a token for a client, as who is signed in here by relay login, or keep one in a file."`
	Logout logoutCmd `cmd:"" help:"Sign this machine out: its tokens end at once, on all relays."`

	NATSCredentials natsCredentialsCmd `cmd:"" name:"nats-credentials" help:"Print NATS credentials with which the notifications of channels can be watched, and nothing else: nats sub 'ahp.v1.default.laptop.chan.>' --creds FILE."`

	Hosts   hostsCmd   `cmd:"" help:"List the hosts that the running relay knows."`
	Forget  forgetCmd  `cmd:"" help:"Have all relays forget a host that is not there."`
	Keys    keysCmd    `cmd:"" help:"Roll the keys of a relay, while it runs."`
	Backup  backupCmd  `cmd:"" help:"Write what a data directory has into one file: the keys, and what is known. The relay may run."`
	Restore restoreCmd `cmd:"" help:"Make a data directory of what relay backup has written."`
	Diag    diagCmd    `cmd:"" help:"Collect into one file what somebody needs who is to help with a relay: no secrets."`
	Check   checkCmd   `cmd:"" help:"Look for what is wrong with a relay's data directory and listeners."`

	cli.Manual
}

//go:generate go test -run ^TestReference$ . -update

// program describes the flags.
func (a *app) program() cli.Program {
	return cli.Program{App: a, Name: "relay", Description: description, Prefix: "AHP_RELAY", Options: []kong.Option{parseVars}}
}

// streams is where a command writes.
type streams struct {
	out io.Writer
	err io.Writer
	log *slog.Logger

	logs     *cli.Common       // how log is
	settings map[string]string // of all flags, without secrets
}

// parseVars are in the help of flags.
var parseVars = kong.Vars{"listen": gateway.DefaultListen, "admin_listen": gateway.DefaultAdminListen, "limits": limitHelp, "share_connections": strconv.Itoa(shareConnections)}

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
	parsed, err := a.program().Parse(args, stdout, stderr)
	if parsed == nil || err != nil {
		return err
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	return parsed.Run(&streams{out: stdout, err: stderr, log: a.Logger(stderr), logs: &a.Common, settings: cli.Settings(parsed)})
}
