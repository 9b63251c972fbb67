package main

import (
	"context"
	"errors"
	"fmt"

	"ahprelay/cmd/internal/agents"
	"ahprelay/hostagent"
)

type checkCmd struct {
	Relay             []string `help:"The relay's base URL. Repeatable for a cluster. Default: the relay that issued the credential." placeholder:"URL"`
	TokenFile         string   `help:"File with the enrolment token (relay token host)." xor:"token" type:"path" placeholder:"FILE"`
	CredentialsFile   string   `help:"Credential file, as for host-agent run. Default: the file written by host-agent up, if there is only one." xor:"token" type:"path" placeholder:"FILE"`
	Upstream          string   `help:"The AHP host's address, as for host-agent run. Default, with a credential: what host-agent up finds on this machine." placeholder:"URL"`
	UpstreamTokenFile string   `help:"File with the connection token required by the host (?tkn=)." type:"path" placeholder:"FILE"`
	NATSURL           []string `help:"NATS server, unless the relay provides it: nats://, tls://, ws:// or wss://. Repeatable, for clusters." placeholder:"URL" name:"nats-url"`
	agents.Flags
	plainFlag
	Command []string `arg:"" optional:"" passthrough:"partial" help:"Command that starts the host, or with --agent, the agent."`
}

// Run checks one step after the other, and stops at the first fault, with advice.
func (c *checkCmd) Run(ctx context.Context, s *streams) error {
	host, err := c.host(ctx, s)
	if err != nil {
		return err
	}
	if len(c.Agent) > 0 {
		if host.agents, err = serveAgents(&c.Flags, c.Command, "", s); err != nil {
			return err
		}
		host.Command = nil
		defer func() {
			if err := host.agents.Close(); err != nil {
				s.log.Warn("agents not stopped", "error", err)
			}
		}()
	}
	cfg, err := host.config(s)
	if err != nil {
		return err
	}
	agent, err := hostagent.New(cfg)
	if err != nil {
		return err
	}
	return agent.Check(ctx, func(said string) { fmt.Fprintln(s.out, "ok ", said) })
}

// host returns the host and its relay. With a credential, the defaults are those of
// host-agent up.
func (c *checkCmd) host(ctx context.Context, s *streams) (f *hostFlags, err error) {
	f = &hostFlags{
		Relay: c.Relay, TokenFile: c.TokenFile, CredentialsFile: c.CredentialsFile, Upstream: c.Upstream, UpstreamTokenFile: c.UpstreamTokenFile,
		NATSURL: c.NATSURL, Command: c.Command, plainFlag: c.plainFlag,
	}
	if c.TokenFile == "" {
		own := shareFlags{Relay: c.Relay, CredentialsFile: c.CredentialsFile}
		if f.CredentialsFile, err = own.credentials(); err != nil {
			return nil, err
		}
		sharing, err := own.sharing()
		if err != nil {
			return nil, err
		}
		f.Relay = sharing.Relays
		if c.Upstream == "" && len(c.Command) == 0 && len(c.Agent) == 0 {
			up := upCmd{UpstreamTokenFile: c.UpstreamTokenFile}
			if f.Upstream, f.UpstreamTokenFile, err = up.find(ctx, s); err != nil {
				return nil, err
			}
			c.Agent = up.Agent // if find has chosen one
		}
	}
	if len(f.Relay) == 0 {
		return nil, errors.New("no relay known: give --relay")
	}
	if len(c.Agent) > 0 && c.Upstream != "" {
		return nil, errors.New("--agent and --upstream exclude each other; choose one")
	}
	return f, nil
}
