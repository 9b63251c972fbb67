package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
)

// requestTimeout bounds a request to the running relay.
const requestTimeout = 5 * time.Second

// relayFlag names the running relay.
type relayFlag struct {
	Relay  string `help:"Base URL of the running relay." default:"http://127.0.0.1:8484" placeholder:"URL"`
	Tenant string `help:"Tenant to ask about." default:"default"`
}

type hostsCmd struct {
	dataFlag
	relayFlag
	JSON bool `help:"Print what the relay's API says."`
}

// Run lists the hosts of the running relay.
func (c *hostsCmd) Run(ctx context.Context, s *streams) error {
	hosts, raw, err := c.list(ctx, c.DataDir)
	if err != nil {
		return err
	}
	if c.JSON {
		_, err := s.out.Write(raw)
		return err
	}
	if len(hosts) == 0 {
		fmt.Fprintln(s.err, "No host has enrolled yet. Make a token with relay token host, and run host-agent with it.")
		return nil
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HOST\tSTATE\tSINCE\tCLIENTS\tAGENT\tHOST SOFTWARE\tREASON")
	for _, h := range hosts {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n",
			h.Host, h.State, h.Since.Format(time.RFC3339), h.Clients, h.AgentVersion, h.HostVersion, h.Reason)
	}
	return table.Flush()
}

// list asks the running relay for its hosts, with a token made for that.
func (f relayFlag) list(ctx context.Context, dataDir string) ([]gateway.HostInfo, []byte, error) {
	if _, err := os.Stat(dataDir); err != nil {
		return nil, nil, fmt.Errorf("--data-dir: %w; name the directory of the running relay", err)
	}
	keys, err := auth.LoadKeys(dataDir)
	if err != nil {
		return nil, nil, err
	}
	token, err := keys.IssueClient(auth.Client{
		Tenant: f.Tenant, Subject: "relay hosts", Hosts: []string{auth.AllHosts}, Access: auth.AccessRead,
		Expires: time.Now().Add(time.Minute),
	})
	if err != nil {
		return nil, nil, err
	}
	status, body, err := f.get(ctx, "/api/hosts", token)
	if err != nil {
		return nil, nil, err
	}
	if status == http.StatusUnauthorized {
		return nil, nil, fmt.Errorf("the relay at %s has other keys than %s; name its own --data-dir", f.Relay, dataDir)
	}
	var answer struct{ Hosts []gateway.HostInfo }
	if err := json.Unmarshal(body, &answer); status != http.StatusOK || err != nil {
		return nil, nil, fmt.Errorf("what answers at %s is no relay (HTTP %d)", f.Relay, status)
	}
	return answer.Hosts, body, nil
}

// get sends one request to the running relay.
func (f relayFlag) get(ctx context.Context, path, token string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	address, err := url.JoinPath(f.Relay, path)
	if err != nil {
		return 0, nil, fmt.Errorf("--relay %q: want http://host:port", f.Relay)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("--relay %q: %w", f.Relay, err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		var inURL *url.Error
		if errors.As(err, &inURL) {
			err = inURL.Err
		}
		return 0, nil, fmt.Errorf("no relay at %s: %w; is it running? (relay serve)", f.Relay, err)
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 16<<20))
	return response.StatusCode, body, err
}
