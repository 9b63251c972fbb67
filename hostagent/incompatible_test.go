package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/locked"
	"ahprelay/test/refclient"
)

// TestIncompatibleHostIsListed connects host-agents whose protocol is too old or too new for the
// relay. The relay must list the host as incompatible. Its clients and the host-agent's log must
// name the program to upgrade.
func TestIncompatibleHostIsListed(t *testing.T) {
	relay, err := gateway.StartRelay(t.Context(), gateway.RelayConfig{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener, Gateway: gateway.Config{Version: "5.0", HoldTime: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		host string
		wire [2]int
		want string
	}{
		{"old", [2]int{-1, link.WireMin - 1}, "host-agent 4.2 speaks -1 to 1, relay 5.0 speaks 2 to 2; upgrade the host-agent 4.2"},
		{"new", [2]int{link.WireMax + 1, link.WireMax + 2}, "upgrade the relay 5.0"},
	} {
		t.Run(test.host, func(t *testing.T) {
			enrolment, err := relay.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: test.host, Expires: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			said := &locked.Buffer{}
			agent, err := newAgent(t, func(c *Config) {
				c.Relays, c.Version = []string{relay.URL()}, "4.2"
				c.Token = func() (string, error) { return enrolment, nil }
				c.Log = slog.New(slog.NewTextHandler(said, nil))
			})
			if err != nil {
				t.Fatal(err)
			}
			agent.presence.current.Wire = test.wire
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- agent.Run(ctx) }()
			awaitText(t, said, test.want, 1)
			info := hostInfo(t, relay.URL()+"/api/hosts/"+test.host, token)
			if info.State != registry.Incompatible || !strings.Contains(info.Reason, test.want) {
				t.Errorf("the relay lists the host as %+v; want it incompatible, with the reason %q", info, test.want)
			}
			wantRefusal(t, relay.URL()+"/ahp/"+test.host, token, test.want)
			stop()
			if err := <-ended; err != nil {
				t.Errorf("Run = %v; want no error", err)
			}
		})
	}
}

// hostInfo requests a relay's description of a host.
func hostInfo(t *testing.T, url, token string) (info hostsapi.Info) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&info); err != nil {
		t.Fatal(err)
	}
	return info
}

// wantRefusal connects a client. It fails unless the relay closes the connection with
// CloseHostOffline and the wanted reason, without an answer to initialize.
func wantRefusal(t *testing.T, url, token, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := refclient.Dial(ctx, "ws"+strings.TrimPrefix(url, "http"), refclient.Options{
		Token: token, HTTPClient: &http.Client{Transport: &http.Transport{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Abort() }()
	_, err = c.Initialize(ctx, refclient.InitializeParams{ClientID: "a", ProtocolVersions: []string{"0.9.0"}})
	var refused *refclient.RPCError
	if err == nil || errors.As(err, &refused) {
		t.Errorf("initialize: %v; want no answer", err)
	}
	if code, reason := c.CloseStatus(); code != int(ahp.CloseHostOffline) || !strings.Contains(reason, want) {
		t.Errorf("the connection was closed with %d %q; want %d with %q", code, reason, ahp.CloseHostOffline, want)
	}
}
