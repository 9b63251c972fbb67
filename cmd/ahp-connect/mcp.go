package main

import (
	"context"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/connect/mcpdoor"
)

type mcpCmd struct {
	relayFlags
	Level auth.Access `help:"The most that the agent may do: look (read sessions), talk (also send messages and answer questions), approve (also let tools run), operate (also start sessions)." enum:"look,talk,approve,operate,read,write" default:"look"`
}

func (c *mcpCmd) Run(ctx context.Context, s *streams) error {
	relays, err := c.relays(s.home)
	if err != nil {
		return err
	}
	in, end := unblock(s.in)
	defer end()
	door := mcpdoor.New(mcpdoor.Config{Relays: relays, Level: c.Level, Fixed: c.TokenFile != "", Log: s.log})
	err = door.Run(ctx, cli.BuildVersion(), &mcp.IOTransport{Reader: io.NopCloser(in), Writer: keepOpen{s.out}})
	if ctx.Err() != nil {
		return nil // the agent has stopped this program
	}
	return err
}

// keepOpen is a writer whose Close does nothing.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }
