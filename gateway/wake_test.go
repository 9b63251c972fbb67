package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/auth"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
)

// startHost starts a host with its host-agent. stop ends both, which otherwise end with
// the test.
func startHost(t *testing.T, relay *Relay, name string, change func(*hostagent.Config)) (stop func()) {
	t.Helper()
	host, err := scripted.New(agenthost.Config{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(host)
	token, err := relay.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: name, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	cfg := hostagent.Config{
		Relays: []string{relay.URL()}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: "ws" + strings.TrimPrefix(server.URL, "http")},
	}
	if change != nil {
		change(&cfg)
	}
	agent, err := hostagent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = host.Close()
		server.Close()
	})
	t.Cleanup(stop)
	return stop
}

// TestWakeRunsTheOperatorsCommand: a signed-in person with the level operate wakes a
// host. The relay runs the operator's command, and answers when the host is online. It
// refuses all other callers, and a second request within half a minute.
func TestWakeRunsTheOperatorsCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	marks := filepath.Join(dir, "marks")
	relay, ada := setUpWith(t, func(cfg *RelayConfig) {
		cfg.Gateway.Wake = map[string]string{
			"default/laptop": fmt.Sprintf(`echo "$AHP_TENANT $AHP_HOST" >> %s`, marks),
			"default/broken": "exit 3",
		}
	})
	for _, host := range []string{"laptop", "broken", "other"} {
		natssite.Enrol(t, relay.registry, "default", host)
	}
	var list struct{ Hosts []hostsapi.Info }
	ada.do("GET", "/api/hosts", nil, &list)
	for _, h := range list.Hosts {
		if h.Wakes != (h.Host != "other") {
			t.Errorf("the host %s: Wakes = %v; want true for all but other", h.Host, h.Wakes)
		}
	}
	wake := func(host, token string) int {
		status, _ := ada.ask("POST", "/api/hosts/"+host+"/wake", token, nil, nil)
		return status
	}
	bearer := func(change func(*auth.Client)) int {
		t.Helper()
		c := auth.Client{Tenant: "default", Subject: "eve", Hosts: []string{"*"}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour)}
		if change != nil {
			change(&c)
		}
		token, err := relay.Keys().Tokens().IssueClient(c)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, relay.URL()+"/api/hosts/laptop/wake", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	for name, got := range map[string]int{
		"a token without a device": bearer(nil),
		"a token that looks":       bearer(func(c *auth.Client) { c.Access = auth.AccessRead }),
		"a token of a session":     bearer(func(c *auth.Client) { c.Channels = []string{"demo:/1"} }),
	} {
		if got != http.StatusForbidden {
			t.Errorf("a wake request by %s: HTTP %d; want 403", name, got)
		}
	}
	if got := bearer(func(c *auth.Client) { c.Hosts = []string{"desk"} }); got != http.StatusNotFound {
		t.Errorf("a wake request with a token for a different host: HTTP %d; want 404", got)
	}
	if got := wake("other", ada.in.Token); got != http.StatusNotFound {
		t.Errorf("a wake request for a host without a command: HTTP %d; want 404", got)
	}
	if _, err := os.Stat(marks); err == nil {
		t.Fatal("the relay ran the command for a refused request; want no file")
	}
	if got := wake("broken", ada.in.Token); got != http.StatusBadGateway {
		t.Errorf("a wake request whose command fails: HTTP %d; want 502", got)
	}
	if got := wake("broken", ada.in.Token); got != http.StatusTooManyRequests {
		t.Errorf("a second wake request at once: HTTP %d; want 429", got)
	}

	woken := wakeLaptop(t, ada)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if mark, err := os.ReadFile(marks); err == nil && strings.TrimSpace(string(mark)) == "default laptop" {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the command has written %q after a minute; want default laptop", mark)
		}
	}
	select {
	case <-woken:
		t.Fatal("the wake request has ended before the host is back; want it to wait")
	case <-time.After(time.Second):
	}
	startHost(t, relay, "laptop", nil)
	if got := <-woken; got.By != "relay" || got.After < 1 || got.After > 60 {
		t.Errorf("the answer to the request to wake the laptop is %+v; want the laptop woken by the relay, after 1 to 60 s", got)
	}
}

// wakeLaptop requests in the background that the relay wake the laptop. The channel
// receives the relay's answer.
func wakeLaptop(t *testing.T, ada *phone) <-chan hostsapi.Woken {
	woken := make(chan hostsapi.Woken, 1)
	go func() {
		var answer hostsapi.Woken
		if status, said := ada.ask("POST", "/api/hosts/laptop/wake", ada.in.Token, nil, &answer); status != http.StatusOK {
			t.Errorf("waking the laptop: HTTP %d %s; want 200", status, said)
		}
		woken <- answer
	}()
	return woken
}

// TestNeighbourWakesAHost: the relay has the host-agent of a host on the same network
// wake a sleeping host, if the owners of both have agreed. It uses the addresses from
// the sleeping host's last time online.
func TestNeighbourWakesAHost(t *testing.T) {
	t.Parallel()
	relay, ada := setUp(t)
	sent := make(chan string, 64)
	wakes := func(targets ...string) func(*hostagent.Config) {
		return func(cfg *hostagent.Config) {
			cfg.Waking = hostagent.Waking{For: targets, Send: func(at net.HardwareAddr) error {
				select {
				case sent <- at.String():
				default:
				}
				return nil
			}}
		}
	}
	become := func(online bool, hosts ...string) {
		t.Helper()
		for _, host := range hosts {
			await(t, func() bool { h, _ := relay.registry.Lookup("default", host); return (h.State == "online") == online })
		}
	}
	refused := func(why string, hosts ...string) {
		t.Helper()
		for _, host := range hosts {
			if status, said := ada.ask("POST", "/api/hosts/"+host+"/wake", ada.in.Token, nil, nil); status != http.StatusNotFound {
				t.Errorf("%s: waking %s: HTTP %d %s; want 404", why, host, status, said)
			}
		}
	}
	stopLaptop := startHost(t, relay, "laptop", func(cfg *hostagent.Config) {
		cfg.Waking = hostagent.Waking{By: []string{"desk"}, Addresses: func(int) []string { return []string{"02:00:5e:00:53:01", "02:00:5e:00:53:02"} }}
	})
	stopOther := startHost(t, relay, "other", nil)
	stopDesk := startHost(t, relay, "desk", wakes("printer"))
	startHost(t, relay, "thief", wakes("laptop", "other"))
	become(true, "laptop", "other", "desk", "thief")
	stopLaptop()
	stopOther()
	become(false, "laptop", "other")
	refused("the owner of desk has not agreed, and laptop's owner not to thief", "laptop")
	stopDesk()
	become(false, "desk")
	refused("desk is away", "laptop")
	startHost(t, relay, "desk", wakes("laptop", "other"))
	become(true, "desk")
	refused("its owner has not agreed", "other")

	var list struct{ Hosts []hostsapi.Info }
	ada.do("GET", "/api/hosts", nil, &list)
	for _, h := range list.Hosts {
		if h.Wakes != (h.Host == "laptop") {
			t.Errorf("the host %s: Wakes = %v; want true for laptop only", h.Host, h.Wakes)
		}
	}
	woken := wakeLaptop(t, ada)
	for _, want := range []string{"02:00:5e:00:53:01", "02:00:5e:00:53:02", "02:00:5e:00:53:01"} { // each address again, because packets may be lost
		if got := <-sent; got != want {
			t.Errorf("the magic packet is for %s; want %s", got, want)
		}
	}
	startHost(t, relay, "laptop", nil)
	if got := <-woken; got.By != "desk" || got.After <= 0 || got.After > 60 {
		t.Errorf("the answer to the request to wake the laptop is %+v; want the laptop woken by the host desk, after up to 60 s", got)
	}
	if status, said := ada.ask("POST", "/api/hosts/laptop/wake", ada.in.Token, nil, nil); status != http.StatusNotFound {
		t.Errorf("waking a host whose neighbour has withdrawn its consent: HTTP %d %s; want 404", status, said)
	}
}
