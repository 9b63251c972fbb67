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

// controlPath returns the control socket's path, "" for none.
func (c *runCmd) controlPath(cfg hostagent.Config, s *streams) string {
	switch c.Control {
	case "off":
		return ""
	case "":
	default:
		return c.Control
	}
	text, err := cfg.Token()
	if err != nil {
		return "" // hostagent.New reports the error
	}
	tenant, host, err := auth.PeekHost(text)
	if err != nil {
		return ""
	}
	path, err := hostagent.ControlPath(cfg.Credentials, cfg.Relays, tenant, host)
	if err != nil {
		s.log.Warn("control socket unavailable", "effect", `commands such as "host-agent clients" cannot reach this host-agent`, "error", err)
		return ""
	}
	return path
}

// controlFlags select one of the host-agents on this machine.
type controlFlags struct {
	Control string `help:"The host-agent's control socket, if it was started with --control." placeholder:"PATH" xor:"which"`
	Host    string `help:"Host name, if several host-agents run on this machine." xor:"which"`
	Tenant  string `help:"The host's tenant." default:"default"`
}

func (f *controlFlags) control() (hostagent.Control, error) {
	if f.Control != "" {
		return hostagent.Control{Path: f.Control}, nil
	}
	if f.Host != "" {
		if err := errors.Join(ahp.CheckName("--host", f.Host), ahp.CheckName("--tenant", f.Tenant)); err != nil {
			return hostagent.Control{}, err
		}
	}
	path, err := hostagent.FindControl(f.Tenant, f.Host)
	return hostagent.Control{Path: path}, err
}

type clientsCmd struct {
	controlFlags
	JSON bool `help:"Print the host-agent's answer as JSON."`
}

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
	for _, bar := range list.Blocked {
		who := "subject " + bar.Subject
		if bar.Subject == "" {
			who = "token " + bar.Token
		}
		fmt.Fprintf(s.err, "Kept away until %s: %s\n", bar.Until.Local().Format(time.RFC3339), who)
	}
	for _, one := range list.Previews {
		fmt.Fprintf(s.err, "Port %d is open for %s since %s as preview %s\n", one.Port, one.Subject, one.Since.Local().Format(time.RFC3339), one.ID)
	}
	if len(list.Clients) == 0 {
		fmt.Fprintf(s.err, "No client is connected to host %s.\n", list.Host)
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

// printable escapes a client's text for terminals, and shortens it.
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
	ID      string        `arg:"" optional:"" help:"Connection ID, as printed by host-agent clients."`
	Subject string        `help:"End all connections of this subject." placeholder:"NAME"`
	Preview string        `help:"Close this preview, given by its ID." placeholder:"ID"`
	For     time.Duration `help:"How long the kicked subject, or the kicked connection's token, is refused. With 0 it is not refused, and some clients reconnect at once." default:"1m" least:"0s" placeholder:"TIME"`
}

func (c *kickCmd) Run(ctx context.Context, s *streams) error {
	if given := slices.DeleteFunc([]string{c.ID, c.Subject, c.Preview}, func(s string) bool { return s == "" }); len(given) != 1 {
		return errors.New("kick: give a connection ID, --subject or --preview")
	}
	control, err := c.control()
	if err != nil {
		return err
	}
	ended, err := control.Kick(ctx, hostagent.Kick{Conn: c.ID, Subject: c.Subject, Preview: c.Preview, For: c.For})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%d ended\n", ended)
	return nil
}
