package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/test/natssite"
)

// A relay of a cluster has never reached the other relays. It is not ready, and tells
// clients to return. It does not call a host unknown, because the host may be online
// elsewhere.
func TestUnreadRelayCallsNoHostUnknown(t *testing.T) {
	t.Parallel()
	own, other := natssite.FreePort(t), natssite.FreePort(t)
	r := startRelay(t, func(cfg *RelayConfig) {
		cfg.ClusterListen, cfg.ClusterRoutes = own, []string{own, other}
	})
	if status, body := get(t, r.URL()+"/readyz", nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "has not been read") {
		t.Errorf("/readyz: HTTP %d %q; want 503 with the reason", status, body)
	}
	await(t, func() bool {
		_, body := get(t, r.AdminURL()+"/readyz", nil)
		return strings.Contains(body, "waiting for "+other+" (connection refused)")
	})
	if _, body := get(t, r.URL()+"/readyz", nil); strings.Contains(body, "127.") || !strings.Contains(body, "waiting for other relays") {
		t.Errorf("/readyz at the public address: %q; want no address of a relay", body)
	}
	token, err := r.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := get(t, r.URL()+"/api/hosts/laptop", bearerOf(token)); status != http.StatusServiceUnavailable {
		t.Errorf("/api/hosts/laptop: HTTP %d; want 503", status)
	}
	ws, _, err := websocket.Dial(t.Context(), r.URL()+"/ahp/laptop", &websocket.DialOptions{HTTPHeader: bearerOf(token)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	if _, _, err := ws.Read(t.Context()); ahp.CloseCode(websocket.CloseStatus(err)) != ahp.CloseHostOffline {
		t.Errorf("a client of a host that may be online elsewhere: %v; want close code 4100", err)
	}
}

// A relay of a cluster has no route. /readyz gives the reason why the relay waits, and
// reports it as ready when a second relay has joined.
func TestClusterWithoutRouteWaitsForSecondRelay(t *testing.T) {
	t.Parallel()
	own := natssite.FreePort(t)
	r := startRelay(t, func(cfg *RelayConfig) { cfg.ClusterListen = own })
	await(t, func() bool {
		_, body := get(t, r.AdminURL()+"/readyz", nil)
		return strings.Contains(body, "waiting for a second relay")
	})
	startRelay(t, func(cfg *RelayConfig) {
		cfg.DataDir, cfg.ClusterListen, cfg.ClusterRoutes, cfg.AdminListen = withKeysOf(t, r.dir.path), natssite.FreePort(t), []string{own}, NoListener
	})
	await(t, func() bool {
		status, _ := get(t, r.URL()+"/readyz", nil)
		return status == http.StatusOK
	})
}
