package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
	hostsapi "ahprelay/gateway/api/hosts"
)

type hostsCmd struct {
	relayFlag
	JSON bool `help:"Print the API's answer as JSON."`
}

func (c *hostsCmd) Run(ctx context.Context, s *streams) error {
	relay, err := c.running()
	if err != nil {
		return err
	}
	hosts, raw, err := relay.hosts(ctx, c.Tenant)
	if err != nil {
		return err
	}
	if c.JSON {
		_, err := s.out.Write(raw)
		return err
	}
	if len(hosts) == 0 {
		fmt.Fprintln(s.err, "No host has enrolled yet. Create a token with relay token host, and run host-agent with it.")
		return nil
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HOST\tSTATE\tSINCE\tCLIENTS\tAGENT\tHOST SOFTWARE\tREASON")
	for _, h := range hosts {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n",
			h.Host, h.State, h.Since.Format(time.RFC3339), h.Clients, h.AgentVersion, h.HostVersion, remark(h))
	}
	return table.Flush()
}

// remark returns a note about a fault of the host, "" for none.
func remark(h hostsapi.Info) string {
	if h.Silent.IsZero() {
		return h.Reason
	}
	return "not answering since " + h.Silent.Format(time.RFC3339)
}

// hosts gets the relay's hosts, with a token issued for this request.
func (r *runningRelay) hosts(ctx context.Context, tenant string) ([]hostsapi.Info, []byte, error) {
	token, err := r.keys.Tokens().IssueClient(auth.Client{
		Tenant: tenant, Subject: "relay hosts", Hosts: []string{auth.AllHosts}, Access: auth.AccessRead,
		Expires: time.Now().Add(time.Minute),
	})
	if err != nil {
		return nil, nil, err
	}
	status, body, err := r.send(ctx, http.MethodGet, "/api/hosts", token, nil)
	if err != nil {
		return nil, nil, err
	}
	if status == http.StatusUnauthorized {
		return nil, nil, r.differentKeys()
	}
	var answer struct{ Hosts []hostsapi.Info }
	if err := json.Unmarshal(body, &answer); status != http.StatusOK || err != nil {
		return nil, nil, r.notRelay(status)
	}
	return answer.Hosts, body, nil
}

// keys loads a relay's keys, and creates none.
func (d dataFlag) keys() (*auth.Keys, error) {
	keys, err := auth.ExistingKeys(d.DataDir)
	if errors.Is(err, auth.ErrNoKeys) {
		return nil, fmt.Errorf("--data-dir: %w; give the running relay's directory, or start a relay there: relay serve --data-dir %s", err, d.DataDir)
	}
	return keys, err
}
