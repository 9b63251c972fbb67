package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
)

type keysCmd struct {
	List   keysListCmd   `cmd:"" help:"List the relay's key sets."`
	Add    keysAddCmd    `cmd:"" help:"Add a key set. After the delay given with --sign-after, it signs all new tokens."`
	Retire keysRetireCmd `cmd:"" help:"Retire a key set: its signatures are refused from then on."`
}

type keysListCmd struct{ dataFlag }

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
	// Host-agents learn new keys when they get NATS credentials, which are valid for 15 minutes.
	SignAfter time.Duration `help:"Delay before the new keys sign, during which relays and host-agents learn them." default:"1h" least:"0s"`
}

func (c *keysAddCmd) Run(_ context.Context, s *streams) error {
	if _, err := c.keys(); err != nil {
		return err
	}
	now := time.Now()
	set, err := auth.AddKeys(c.DataDir, now, now.Add(c.SignAfter))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s\nCopy the directory keys to the data directories of all other relays in the cluster before %s: these keys sign from then on. Running relays load them automatically.\n", set.ID, stampOr(set.Signs, ""))
	return err
}

type keysRetireCmd struct {
	dataFlag
	ID    string `arg:"" help:"Key set, as printed by relay keys list." placeholder:"KEYS"`
	Force bool   `help:"Retire the key set even if no later set has signed for 15m. Host-agents that have been offline since the newer keys were added are then refused."`
}

func (c *keysRetireCmd) Run(_ context.Context, s *streams) error {
	if _, err := c.keys(); err != nil {
		return err
	}
	if err := auth.RetireKeys(c.DataDir, c.ID, time.Now().Add(-time.Second), c.Force); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "retired %s: its signatures are refused. Do the same for the data directories of all other relays in the cluster.\n", c.ID)
	return err
}
