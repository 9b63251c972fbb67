package hosts

import (
	"net/http"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/authn"
)

// Config is what an [API] is given.
type Config struct {
	Caller *authn.Checker
	List   func(tenant string) []registry.Host
	Lookup func(tenant, host string) (registry.Host, bool)
	OwnURL string // at which clients reach this relay and no other of its cluster; "": none is known
}

// An API tells of hosts.
type API struct{ Config }

// New returns an API.
func New(cfg Config) *API { return &API{cfg} }

// Routes adds what is asked of hosts.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/hosts", a.serveHosts)
	mux.HandleFunc("GET /api/hosts/{host}", a.serveHost)
}

// An Info is a host as the API shows it.
type Info struct {
	Host         string         `json:"host"`
	State        registry.State `json:"state"`
	Since        time.Time      `json:"since"` // when it came into that state
	Silent       *time.Time     `json:"notAnsweringSince,omitempty"`
	Region       string         `json:"region,omitempty"` // that decides who serves it, of several
	LastSeen     *time.Time     `json:"lastSeen"`         // null: never
	Reason       string         `json:"reason,omitempty"` // why it is not online
	AgentVersion string         `json:"agentVersion,omitempty"`
	HostVersion  string         `json:"hostVersion,omitempty"`
	Clients      int            `json:"clients"` // connected now

	// Endpoint is where a client is nearest to it: at the relay where its host-agent is
	// connected. Any other will do.
	Endpoint string `json:"endpoint,omitempty"`
}

// EndpointHeader is in the answer to a client that is at another relay than its host's
// host-agent, and says where that is.
const EndpointHeader = "AHP-Relay-Endpoint"

// Endpoint returns where clients reach a host through the relay that it is connected to,
// "" if that is not known.
func Endpoint(h registry.Host) string {
	rest, ok := strings.CutPrefix(h.URL, "http")
	if !ok {
		return ""
	}
	return "ws" + rest + "/ahp/" + h.Name
}

// Of returns a host as the API shows it.
func Of(h registry.Host) Info {
	info := Info{
		Host: h.Name, State: h.State, Since: h.Since.UTC(), Reason: h.Reason,
		AgentVersion: h.AgentVersion, HostVersion: h.HostVersion, Clients: h.Clients, Endpoint: Endpoint(h), Region: h.Region,
	}
	if !h.LastSeen.IsZero() {
		seen := h.LastSeen.UTC()
		info.LastSeen = &seen
	}
	if !h.Silent.IsZero() {
		silent := h.Silent.UTC()
		info.Silent = &silent
	}
	return info
}

// A grant is what a token allows, as the API shows it, so that a page need not
// offer what will be refused.
type grant struct {
	Subject  string      `json:"subject"`
	Access   auth.Access `json:"access"`
	Level    string      `json:"level"`              // the same, by its name
	Channels []string    `json:"channels,omitempty"` // none: all
	Methods  []string    `json:"methods,omitempty"`  // none: all that Access allows
	Expires  time.Time   `json:"expires"`
}

func grantOf(who auth.Client) grant {
	return grant{who.Subject, who.Access, who.Access.Level(), who.Channels, who.Methods, who.Expires}
}

// Hosts returns the hosts that a token may see.
func (a *API) Hosts(who auth.Client) []Info {
	list := []Info{}
	for _, h := range a.List(who.Tenant) {
		if who.MayReach(h.Tenant, h.Name) {
			list = append(list, Of(h))
		}
	}
	return list
}

// TellEndpoint tells a client that may see a host where it would be nearer to it.
func (a *API) TellEndpoint(w http.ResponseWriter, who auth.Client, name string) {
	if !who.MayReach(who.Tenant, name) {
		return
	}
	host, _ := a.Lookup(who.Tenant, name)
	if host.URL != "" && host.URL != strings.TrimSuffix(a.OwnURL, "/") {
		w.Header().Set(EndpointHeader, Endpoint(host))
	}
}

// serveHosts lists the hosts that the token may see, and what it allows there.
func (a *API) serveHosts(w http.ResponseWriter, r *http.Request) {
	who, ok := a.Caller.Client(w, r)
	if !ok {
		return
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"hosts": a.Hosts(who), "token": grantOf(who)})
}

// serveHost tells of one host. One that the token may not see is not there.
func (a *API) serveHost(w http.ResponseWriter, r *http.Request) {
	who, ok := a.Caller.Client(w, r)
	if !ok {
		return
	}
	name := r.PathValue("host")
	host, known := a.Lookup(who.Tenant, name)
	if !known || !who.MayReach(who.Tenant, name) {
		authn.WriteJSON(w, http.StatusNotFound, map[string]string{"error": ahp.CloseUnknownHost.Reason()})
		return
	}
	authn.WriteJSON(w, http.StatusOK, Of(host))
}
