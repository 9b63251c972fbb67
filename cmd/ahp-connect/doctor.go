package main

import (
	"context"
	"errors"
	"fmt"

	"ahprelay/internal/connect"
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
		fmt.Fprintln(s.out, mark, text)
	}
	relays, err := c.relays(s.home)
	if err != nil {
		say(false, err.Error())
		return errFaults
	}
	for _, relay := range relays.All() {
		relay.Check(ctx, say)
	}
	c.port(s, say)
	if faults > 0 {
		return errFaults
	}
	return nil
}

// port checks the address of ahp-connect up.
func (c *doctorCmd) port(s *streams, say func(ok bool, text string)) {
	release, err := s.home.Lock()
	if errors.Is(err, connect.ErrRuns) {
		say(true, "ahp-connect up runs")
		return
	}
	if err != nil {
		say(false, fmt.Sprintf("%s cannot be used: %v", s.home.Dir, err))
		return
	}
	defer release()
	l, err := connect.Listen(c.Listen)
	if err != nil {
		say(false, err.Error())
		return
	}
	_ = l.Close() // nobody has connected
	say(true, "ahp-connect up does not run, and "+c.Listen+" is free: start it with ahp-connect up, or ahp-connect install")
}
