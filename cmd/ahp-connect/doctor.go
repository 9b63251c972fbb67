package main

import (
	"context"
	"errors"
	"fmt"

	"ahprelay/cmd/internal/cli"
)

type doctorCmd struct {
	relayFlags
	Listen string `help:"The address of ahp-connect up." default:"${listen}" placeholder:"HOST:PORT"`
}

var errFaults = errors.New("faults found; see above")

// Run checks each relay and the address of ahp-connect up, and prints a line for each result.
func (c *doctorCmd) Run(ctx context.Context, s *streams) error {
	faults := 0
	say := func(ok bool, text string) {
		mark := "ok "
		if !ok {
			mark = "-- "
			faults++
		}
		fmt.Fprintln(s.out, mark, cli.Printable(text))
	}
	relays, err := c.relays(s.home)
	if err != nil {
		say(false, err.Error())
		return errFaults
	}
	for _, relay := range relays.All() {
		relay.Check(ctx, say)
	}
	s.home.CheckAddress(c.Listen, say)
	if faults > 0 {
		return errFaults
	}
	return nil
}
