package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"ahprelay/gateway/authn"
	"ahprelay/internal/meter"
)

// adminPages serves the admin listener's pages.
type adminPages struct {
	cfg     *Config
	hosts   *hosts
	reports *reports
	metrics *metrics
	ready   http.HandlerFunc // serves /readyz
}

func (a *adminPages) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", meter.Handler(a.metrics.registry))
	mux.HandleFunc("GET /admin/connections", a.serveConnections)
	mux.HandleFunc("GET /admin/runtime/mcp", a.serveMCP)
	mux.HandleFunc("GET /admin/settings", func(w http.ResponseWriter, _ *http.Request) {
		authn.WriteJSON(w, http.StatusOK, map[string]any{"version": a.cfg.Version, "relay": a.cfg.Instance, "settings": a.cfg.Settings})
	})
	mux.HandleFunc("GET /healthz", serveHealthy)
	mux.HandleFunc("GET /readyz", a.ready)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return meter.LocalOnly(mux)
}

// A connectionInfo describes a client's connection on the admin page.
type connectionInfo struct {
	ID        string    `json:"id"` // appears in all logs of the relay and the host-agent
	Tenant    string    `json:"tenant"`
	Host      string    `json:"host"`
	Subject   string    `json:"subject"`
	Remote    string    `json:"remote"`
	Since     time.Time `json:"since"`
	Phase     string    `json:"phase"`
	Ready     bool      `json:"initialized"` // the host has answered initialize or reconnect
	FramesIn  int64     `json:"framesIn"`    // from the client
	FramesOut int64     `json:"framesOut"`
	BytesIn   int64     `json:"bytesIn"`
	BytesOut  int64     `json:"bytesOut"`
	Queued    int       `json:"queuedBytes"` // for the client

	Reported *json.RawMessage `json:"reported,omitempty"` // by the host-agent: the state of its gates
}

func connectionInfoOf(c *client) connectionInfo {
	return connectionInfo{
		ID: c.id, Tenant: c.host.tenant, Host: c.host.name, Subject: c.token.first.Subject, Remote: c.remote,
		Since: c.since.UTC(), Phase: c.phaseNow().String(), Ready: c.ready.Load(),
		FramesIn: c.framesIn.Load(), FramesOut: c.framesOut.Load(),
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(), Queued: c.out.queued(),
		Reported: c.reported.Load(),
	}
}

// serveConnections responds with the number of connections and, with details=1, a list.
func (a *adminPages) serveConnections(w http.ResponseWriter, r *http.Request) {
	answerConnections(a, w, r, connectionInfoOf, map[string]any{"links": a.hosts.links()})
}

// answerConnections adds the number of connections to an answer, and with details=1 the
// info for each connection, oldest first.
func answerConnections[T any](a *adminPages, w http.ResponseWriter, r *http.Request, info func(*client) T, answer map[string]any) {
	clients := a.hosts.all()
	answer["relay"], answer["connections"] = a.cfg.Instance, len(clients)
	if r.URL.Query().Get("details") == "1" {
		slices.SortFunc(clients, func(a, b *client) int { return a.since.Compare(b.since) })
		list := make([]T, len(clients))
		for i, c := range clients {
			list[i] = info(c)
		}
		answer["details"] = list
	}
	authn.WriteJSON(w, http.StatusOK, answer)
}
