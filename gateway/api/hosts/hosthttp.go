package hosts

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/broker/wake"
	"ahprelay/gateway/authn"
)

// Config configures an [API].
type Config struct {
	Caller *authn.Checker
	List   func(tenant string) []registry.Host
	Lookup func(tenant, host string) (registry.Host, bool)
	Find   func(ctx context.Context, tenant, host string) error // fails if the host is surely unknown: see [registry.Registry.Find]
	OwnURL string                                               // base URL that leads to this relay only, not to others of its cluster; "": unknown

	Wake  map[string]string      // the operator's commands to wake hosts, by tenant/host
	Order func(wake.Order) error // sends an order to a host-agent; nil: hosts wake no hosts
	Life  context.Context        // ends attempts to wake; required with Wake or Order
	Spawn func(func()) bool      // runs a goroutine; required with Wake or Order
}

// An API serves hosts.
type API struct {
	Config
	waking *waking
}

// New returns an API.
func New(cfg Config) *API {
	return &API{cfg, &waking{commands: cfg.Wake, life: cfg.Life, spawn: cfg.Spawn, runs: map[string]*wakeRun{}}}
}

// Routes registers the handlers.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/hosts", a.serveHosts)
	mux.HandleFunc("GET /api/hosts/{host}", a.serveHost)
	mux.HandleFunc("POST /api/hosts/{host}/wake", a.serveWake)
}

// An Info is a host in the API's JSON.
type Info struct {
	Host         string         `json:"host"`
	State        registry.State `json:"state"`
	Since        time.Time      `json:"since"` // start of the current state
	Silent       time.Time      `json:"notAnsweringSince,omitzero"`
	Region       string         `json:"region,omitempty"` // the host's home region, if there are several
	LastSeen     *time.Time     `json:"lastSeen"`         // null: never
	Reason       string         `json:"reason,omitempty"` // reason for the absence
	AgentVersion string         `json:"agentVersion,omitempty"`
	HostVersion  string         `json:"hostVersion,omitempty"`
	Clients      int            `json:"clients"`             // connected now
	KeptAwake    *KeptAwake     `json:"keptAwake,omitempty"` // null: nothing keeps the machine from idle sleep
	Sealed       bool           `json:"sealed,omitempty"`    // the host accepts only sealed connections from known devices

	Wakes bool `json:"wakes,omitempty"` // the machine can be woken now

	// Endpoint is the host's URL at the relay to which the host-agent is connected. All
	// other relays work too, but are slower.
	Endpoint string `json:"endpoint,omitempty"`
}

// KeptAwake counts the reasons why a host's machine does not sleep.
type KeptAwake struct {
	Sessions int `json:"sessions"` // sessions in which the agent works
	People   int `json:"people"`   // connected people, with --keep-awake=connected
}

// EndpointHeader is a header in the handshake's response. If the host-agent is connected
// to a different relay, the header has the host's URL at that relay.
const EndpointHeader = "AHP-Relay-Endpoint"

// Endpoint returns a host's URL at the relay to which the host-agent is connected, or ""
// if unknown.
func Endpoint(h registry.Host) string {
	rest, ok := strings.CutPrefix(h.URL, "http")
	if !ok {
		return ""
	}
	return "ws" + rest + "/ahp/" + h.Name
}

// Of returns a host's Info.
func Of(h registry.Host) Info {
	info := Info{
		Host: h.Name, State: h.State, Since: h.Since.UTC(), Reason: h.Reason,
		AgentVersion: h.AgentVersion, HostVersion: h.HostVersion, Clients: h.Clients, Sealed: h.Sealed, Endpoint: Endpoint(h), Region: h.Region,
		Silent: h.Silent.UTC(),
	}
	if by := h.KeptAwake; by != [2]int{} {
		info.KeptAwake = &KeptAwake{by[0], by[1]}
	}
	if !h.LastSeen.IsZero() {
		seen := h.LastSeen.UTC()
		info.LastSeen = &seen
	}
	return info
}

// of returns a host's Info, with the fields that only this relay knows.
func (a *API) of(h registry.Host) Info {
	info := Of(h)
	info.Wakes = a.CanWake(h.Tenant, h.Name)
	return info
}

// A grant is a token's authority in JSON. The console uses it to hide actions that the
// host-agent would refuse.
type grant struct {
	Subject  string      `json:"subject"`
	Access   auth.Access `json:"access"`
	Level    string      `json:"level"`              // name of Access
	Channels []string    `json:"channels,omitempty"` // empty: all
	Methods  []string    `json:"methods,omitempty"`  // empty: all that Access allows
	Expires  time.Time   `json:"expires"`
}

// Hosts returns the hosts that a token may reach.
func (a *API) Hosts(who auth.Client) []Info {
	list := []Info{}
	for _, h := range a.List(who.Tenant) {
		if who.MayReach(h.Tenant, h.Name) {
			list = append(list, a.of(h))
		}
	}
	return list
}

// TellEndpoint sets the EndpointHeader if the client may reach the host and the
// host-agent is connected to a different relay.
func (a *API) TellEndpoint(w http.ResponseWriter, who auth.Client, name string) {
	if !who.MayReach(who.Tenant, name) {
		return
	}
	host, _ := a.Lookup(who.Tenant, name)
	if host.URL != "" && host.URL != a.OwnURL {
		w.Header().Set(EndpointHeader, Endpoint(host))
	}
}

// serveHosts responds with the hosts that the token may reach, the token's authority, and
// the relay's time.
func (a *API) serveHosts(w http.ResponseWriter, r *http.Request) {
	who, ok := a.Caller.Client(w, r)
	if !ok {
		return
	}
	token := grant{who.Subject, who.Access, who.Access.Level(), who.Channels, who.Methods, who.Expires}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"hosts": a.Hosts(who), "token": token, "now": time.Now().UTC()})
}

// serveHost responds with a host's Info. A host that the token may not reach appears
// unknown.
func (a *API) serveHost(w http.ResponseWriter, r *http.Request) {
	who, ok := a.Caller.Client(w, r)
	if !ok {
		return
	}
	name := r.PathValue("host")
	err := registry.ErrUnknownHost
	if who.MayReach(who.Tenant, name) {
		err = a.Find(r.Context(), who.Tenant, name)
	}
	switch {
	case errors.Is(err, registry.ErrUnknownHost):
		authn.WriteJSON(w, http.StatusNotFound, map[string]string{"error": ahp.CloseUnknownHost.Reason()})
		return
	case err != nil:
		w.Header().Set("Retry-After", "2")
		authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": "this relay cannot tell yet whether that host exists"})
		return
	}
	host, _ := a.Lookup(who.Tenant, name)
	authn.WriteJSON(w, http.StatusOK, a.of(host))
}
