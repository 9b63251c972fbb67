package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/hostagent"
)

// controlPath is where run has its control socket, "" for nowhere.
func (c *runCmd) controlPath(token func() (string, error), s *streams) string {
	switch c.Control {
	case "off":
		return ""
	case "":
	default:
		return c.Control
	}
	text, err := token()
	if err != nil {
		return "" // hostagent.New says why
	}
	tenant, host, err := auth.PeekHost(text)
	if err != nil {
		return ""
	}
	path, err := hostagent.ControlPath(tenant, host)
	if err != nil {
		s.log.Warn("host-agent clients and kick cannot reach this host-agent", "error", err)
		return ""
	}
	return path
}

// controlFlags say which of the host-agents that run here is meant.
type controlFlags struct {
	Control string `help:"Control socket of the host-agent, if it was started with --control." placeholder:"PATH" xor:"which"`
	Host    string `help:"Name of the host, if several host-agents run here." xor:"which"`
	Tenant  string `help:"Tenant of the host." default:"default"`
}

func (f *controlFlags) control() (hostagent.Control, error) {
	path, err := f.Control, error(nil)
	switch {
	case path != "":
	case f.Host != "":
		if err := errors.Join(ahp.CheckName("--host", f.Host), ahp.CheckName("--tenant", f.Tenant)); err != nil {
			return hostagent.Control{}, err
		}
		path, err = hostagent.ControlPath(f.Tenant, f.Host)
	default:
		path, err = hostagent.FindControl()
	}
	return hostagent.Control{Path: path}, err
}

type clientsCmd struct {
	controlFlags
	JSON bool `help:"Print what the host-agent says, as JSON."`
}

// Run lists who is connected.
func (c *clientsCmd) Run(ctx context.Context, s *streams) error {
	control, err := c.control()
	if err != nil {
		return err
	}
	list, err := control.Clients(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		out := json.NewEncoder(s.out)
		out.SetIndent("", "  ")
		return out.Encode(list)
	}
	for _, bar := range list.Barred {
		who := "subject " + bar.Subject
		if bar.Subject == "" {
			who = "token " + bar.Token
		}
		fmt.Fprintf(s.err, "Kept away until %s: %s\n", bar.Until.Local().Format(time.RFC3339), who)
	}
	for _, one := range list.Previews {
		fmt.Fprintf(s.err, "Port %d is open for %s since %s, as preview %s\n", one.Port, one.Subject, one.Since.Local().Format(time.RFC3339), one.ID)
	}
	if len(list.Clients) == 0 {
		fmt.Fprintf(s.err, "Nobody is connected to host %s.\n", list.Host)
		return nil
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSUBJECT\tACCESS\tSINCE\tADDRESS\tRELAY\tIN\tOUT\tREFUSED\tCLIENT ID")
	for _, one := range list.Clients {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", one.ID, one.Subject, one.Access,
			one.Since.Local().Format(time.RFC3339), one.Address, one.Relay, one.FramesIn, one.FramesOut, one.Refused, printable(one.ClientID))
	}
	return table.Flush()
}

// printable returns what a client has said in a form that does nothing to a
// terminal.
func printable(text string) string {
	const most = 64
	quoted := fmt.Sprintf("%+q", text)
	quoted = quoted[1 : len(quoted)-1]
	if len(quoted) > most {
		return quoted[:most] + "..."
	}
	return quoted
}

type kickCmd struct {
	controlFlags
	ID      string        `arg:"" optional:"" help:"Id of the connection, as host-agent clients lists it."`
	Subject string        `help:"End all connections of a subject instead." placeholder:"NAME"`
	Preview string        `help:"Close a preview instead, by its id." placeholder:"ID"`
	For     time.Duration `help:"How long who was kicked cannot come back: the subject, or who has the token of the connection. 0 for not at all: some clients come back at once." default:"1m" placeholder:"TIME"`
}

// Run ends connections.
func (c *kickCmd) Run(ctx context.Context, s *streams) error {
	if given := slices.DeleteFunc([]string{c.ID, c.Subject, c.Preview}, func(s string) bool { return s == "" }); len(given) != 1 {
		return errors.New("kick: give the id of a connection, or --subject, or --preview")
	}
	if c.For < 0 {
		return fmt.Errorf("--for is %v; want 0 or more", c.For)
	}
	control, err := c.control()
	if err != nil {
		return err
	}
	var ended int
	switch {
	case c.Preview != "":
		ended, err = control.ClosePreview(ctx, c.Preview)
	case c.ID != "":
		ended, err = control.KickConn(ctx, c.ID, c.For)
	default:
		ended, err = control.KickSubject(ctx, c.Subject, c.For)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%d ended\n", ended)
	return nil
}
