package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
)

type keysCmd struct {
	List   keysListCmd   `cmd:"" help:"List the sets of keys of a relay."`
	Add    keysAddCmd    `cmd:"" help:"Make another set of keys, with which everything new is signed after a while."`
	Retire keysRetireCmd `cmd:"" help:"Have a set of keys be no good any more."`
}

type keysListCmd struct{ dataFlag }

// Run lists the sets.
func (c *keysListCmd) Run(_ context.Context, s *streams) error {
	keys, err := c.keys()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEYS\tMADE\tSIGN FROM\tSTATE")
	for _, set := range keys.List() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", set.ID, stampOr(set.Made, "first"), stampOr(set.Signs, "-"), set.State)
	}
	return w.Flush()
}

func stampOr(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return t.UTC().Format(time.RFC3339)
}

type keysAddCmd struct {
	dataFlag
	SignAfter time.Duration `help:"How long they are made known to relays and host-agents before anything is signed with them." default:"1h"`
}

// Run makes a set.
func (c *keysAddCmd) Run(_ context.Context, s *streams) error {
	if _, err := c.keys(); err != nil {
		return err
	}
	now := time.Now()
	set, err := auth.AddKeys(c.DataDir, now, now.Add(c.SignAfter))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s\nCopy the directory keys to the data directories of all other relays of the cluster before %s: from then on these keys sign. Running relays find them by themselves.\n", set.ID, stampOr(set.Signs, ""))
	return err
}

type keysRetireCmd struct {
	dataFlag
	ID    string `arg:"" help:"The set, as relay keys list names it." placeholder:"KEYS"`
	Force bool   `help:"Also if others have not signed for long enough: tokens, and host-agents that were not there meanwhile, are refused."`
}

// Run retires a set.
func (c *keysRetireCmd) Run(_ context.Context, s *streams) error {
	if _, err := c.keys(); err != nil {
		return err
	}
	if err := auth.RetireKeys(c.DataDir, c.ID, time.Now().Add(-time.Second), c.Force); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "retired %s: what it has signed is refused. Do the same for the data directories of all other relays of the cluster.\n", c.ID)
	return err
}
