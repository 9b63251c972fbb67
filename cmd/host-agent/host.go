package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/cmd/internal/agents"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

var programOptions = []kong.Option{kong.Vars{"resume": link.DefaultResume.String()}}

// streams holds a command's outputs and log.
type streams struct {
	out io.Writer
	err io.Writer
	log *slog.Logger

	logs *cli.Common // the settings of log
}

// statusRefused is the exit status after a relay has refused the token: a new start
// does not help, so units do not restart the host-agent. It is EX_NOPERM of sysexits.h.
const statusRefused = 77

// hostFlags select the host, and the relay that makes it reachable.
type hostFlags struct {
	Relay             []string `help:"The relay's base URL. Repeatable for a cluster: if a relay is unreachable, the host-agent uses the next." required:"" placeholder:"URL"`
	TokenFile         string   `help:"File with the enrolment token (relay token host)." xor:"token" required:"" type:"path" placeholder:"FILE"`
	CredentialsFile   string   `help:"Credential file written by host-agent enroll, instead of --token-file. The host-agent renews the credential in it." xor:"token" required:"" type:"path" placeholder:"FILE"`
	Upstream          string   `help:"The AHP host's address: ws://, wss:// or unix:/path, or lock:/path for VS Code's lock file. Alternatively, give a command after -- that speaks AHP on standard input and output; it is started once for each client, without --notify and --remember." placeholder:"URL"`
	UpstreamTokenFile string   `help:"File with the connection token required by the host (?tkn=)." type:"path" placeholder:"FILE"`
	NATSURL           []string `help:"NATS server, unless the relay provides it: nats://, tls://, ws:// or wss://. Repeatable, for clusters." placeholder:"URL" name:"nats-url"`
	plainFlag
	Command []string `arg:"" optional:"" passthrough:"partial" help:"Command that starts the host, or with --agent, the agent."`

	agents *agents.Host // serves --agent; nil for other hosts
}

// plainFlag lets secrets cross a network without TLS.
type plainFlag struct {
	RelayPlain bool `help:"Allow http:// to relays, and nats:// or ws:// to NATS, beyond loopback addresses. For private networks only: a reader there sees the token and all traffic."`
}

func (f *hostFlags) config(s *streams) (cfg hostagent.Config, err error) {
	command := agents.Behind(f.Command)
	upstream := hostagent.Upstream{URL: f.Upstream, Command: command, TokenFile: f.UpstreamTokenFile, Stderr: s.err}
	if f.agents != nil {
		upstream = hostagent.Upstream{Local: f.agents.Local}
	}
	cfg = hostagent.Config{
		Relays: f.Relay, NATSURLs: f.NATSURL, Plain: f.RelayPlain, Token: f.token, Version: cli.BuildVersion(), Log: s.log,
		Upstream: upstream,
	}
	if f.CredentialsFile != "" {
		if cfg.Credentials, err = hostagent.OpenCredentialFile(f.CredentialsFile); err == nil {
			cfg.Token = cfg.Credentials.Token
		}
	}
	return cfg, err
}

// token reads the enrolment token, which may be replaced while the host-agent runs.
func (f *hostFlags) token() (string, error) {
	b, err := os.ReadFile(f.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return onlyToken(b, f.TokenFile)
}

// onlyToken returns the token in a token file.
func onlyToken(b []byte, file string) (string, error) {
	token := auth.TokenIn(b)
	if token == "" {
		return "", errors.New("--token-file " + file + " is empty; want the output of relay token host")
	}
	return token, nil
}
