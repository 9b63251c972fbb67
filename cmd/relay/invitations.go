package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	peopleapi "ahprelay/gateway/api/people"
)

type invitationsCmd struct {
	relayFlag
}

func (c *invitationsCmd) Run(ctx context.Context, s *streams) error {
	relay, err := c.running()
	if err != nil {
		return err
	}
	var answer struct{ Invites []peopleapi.ShownInvite }
	if err := relay.operate(ctx, http.MethodGet, "/operator/invites/"+c.Tenant, "relay invitations", nil, &answer); err != nil {
		return err
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tINVITED\tLEVEL\tHOSTS\tBY\tUNTIL")
	for _, i := range answer.Invites {
		by := cmp.Or(i.By, "the operator")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", i.ID, i.Subject, i.Level, strings.Join(i.Hosts, ","), by, i.Expires.Format(time.RFC3339))
	}
	return table.Flush()
}

type withdrawCmd struct {
	relayFlag
	ID string `arg:"" help:"Invitation ID, as printed by relay invitations."`
}

func (c *withdrawCmd) Run(ctx context.Context, s *streams) error {
	relay, err := c.running()
	if err != nil {
		return err
	}
	if err := relay.operate(ctx, http.MethodDelete, "/operator/invites/"+c.Tenant+"/"+c.ID, "relay withdraw", nil, &struct{}{}); err != nil {
		return fmt.Errorf("withdraw %s: %w; relay invitations lists the open ones", c.ID, err)
	}
	_, err = fmt.Fprintf(s.out, "withdrew invitation %s\n", c.ID)
	return err
}
