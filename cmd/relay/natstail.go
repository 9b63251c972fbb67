package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/routing"
)

type natsTailCmd struct {
	dataFlag
	Host    string `help:"Host to read." required:"" placeholder:"HOST"`
	Channel string `help:"URI of the only channel to read. Default: all." placeholder:"URI"`
	Tenant  string `help:"The host's tenant." default:"default"`
	Server  string `help:"NATS server: the relay's --nats-listen, or your own." default:"nats://127.0.0.1:4222" placeholder:"URL"`
}

func (c *natsTailCmd) Run(ctx context.Context, s *streams) error {
	keys, err := c.keys()
	if err != nil {
		return err
	}
	creds, err := keys.Authority().ChannelReader(c.Tenant, c.Host, auth.MaxReaderTTL)
	if err != nil {
		return err
	}
	token := ""
	if c.Channel != "" {
		token = routing.ChannelToken(c.Channel)
	}
	var joiner routing.Joiner
	return broker.Tail(ctx, c.Server, creds, c.Tenant, c.Host, token, func(data []byte) {
		err := routing.ReadFeed(data, func(p routing.Piece) {
			if message := joiner.Add(p); message != nil {
				s.printJSON(message)
			}
		})
		if err != nil {
			fmt.Fprintln(s.err, "relay: message skipped:", err)
		}
	}, func(n int) { fmt.Fprintf(s.err, "relay: %d messages lost: this terminal is slower than the host\n", n) })
}

func (s *streams) printJSON(message []byte) {
	var line bytes.Buffer
	if err := json.Compact(&line, message); err != nil {
		fmt.Fprintln(s.err, "relay: notification skipped:", err)
		return
	}
	line.WriteByte('\n')
	_, _ = s.out.Write(line.Bytes()) // fails if the reader of the output is gone
}
