package main

import (
	"context"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/connect/acpdoor"
)

type acpCmd struct {
	relayFlags
	Host    string      `help:"The host, or RELAY/HOST." required:"" placeholder:"HOST"`
	Folder  string      `help:"Folder of new sessions, an absolute path at the host. Default: the editor's folder, for machines with the same paths." placeholder:"DIR"`
	Session string      `help:"Address of an existing session to join, as the console and ahp-connect mcp show it. Default: a new session." placeholder:"URI"`
	Agent   string      `help:"The host's agent for new sessions, such as claude. Default: the host's first." placeholder:"NAME"`
	Level   auth.Access `help:"The highest level to use: look, talk, approve or operate. Default: your own, at most operate." enum:"look,talk,approve,operate,read,write," default:""`
}

func (c *acpCmd) Run(ctx context.Context, s *streams) error {
	relays, err := c.relays(s.home)
	if err != nil {
		return err
	}
	in, end := unblock(s.in)
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer stop()
	return acpdoor.Serve(ctx, acpdoor.Config{
		Relays: relays, Host: c.Host, Level: c.Level, Folder: c.Folder, Session: c.Session, Agent: c.Agent, Version: cli.BuildVersion(), Log: s.log,
	}, in, s.out)
}
