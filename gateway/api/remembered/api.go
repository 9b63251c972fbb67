package remembered

import (
	"context"
	"errors"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/remember"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/remembered"
)

// A Source holds the stored records.
type Source interface {
	Entries(tenant, host string) []remembered.Entry
	Load(ctx context.Context, tenant, host, id string) (*remember.Record, time.Time, error)
}

// An API serves records.
type API struct {
	Caller *authn.Checker
	Source func() Source // returns nil before the relay has one
}

// A Kept is a record with the time at which it was stored, by the relay's clock.
type Kept struct {
	Stored time.Time        `json:"stored"`
	Record *remember.Record `json:"record"`
}

// Routes registers the handlers.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/hosts/{host}/remembered", a.serveAll)
	mux.HandleFunc("GET /api/hosts/{host}/remembered/session", a.serveSession)
}

// errNone does not reveal whether the record is missing or the token may not read it.
var errNone = errors.New("nothing is remembered here for this token")

// enter returns the caller and its policy. If ok is false, it has responded with an
// error.
func (a *API) enter(w http.ResponseWriter, r *http.Request) (who auth.Client, policy gate.Policy, from Source, ok bool) {
	if who, ok = a.Caller.Client(w, r); !ok {
		return who, policy, nil, false
	}
	from = a.Source()
	if from == nil || !who.MayReach(who.Tenant, r.PathValue("host")) {
		authn.WriteError(w, http.StatusNotFound, errNone)
		return who, policy, nil, false
	}
	return who, gate.NewPolicy(who.Access, who.Channels, who.Methods, who.Reverse), from, true
}

func (a *API) serveAll(w http.ResponseWriter, r *http.Request) {
	who, policy, from, ok := a.enter(w, r)
	if !ok {
		return
	}
	if !policy.SeesAll() {
		authn.WriteError(w, http.StatusForbidden, errors.New("this token is for certain sessions only: request each at …/remembered/session?uri="))
		return
	}
	list, err := a.load(r, from, who, remember.ListID)
	if err != nil {
		a.failed(w, err)
		return
	}
	entries := from.Entries(who.Tenant, r.PathValue("host"))
	authn.WriteJSON(w, http.StatusOK, map[string]any{"sessions": entries, "list": list, "now": time.Now().UTC()})
}

func (a *API) serveSession(w http.ResponseWriter, r *http.Request) {
	who, policy, from, ok := a.enter(w, r)
	if !ok {
		return
	}
	session, id := r.URL.Query().Get("uri"), r.URL.Query().Get("id")
	if session != "" {
		id = remember.IDOf(session)
	}
	if session != "" && !policy.Sees(session) || !remember.IsID(id) || id == remember.ListID {
		authn.WriteError(w, http.StatusNotFound, errNone)
		return
	}
	kept, err := a.load(r, from, who, id)
	switch {
	case err != nil:
		a.failed(w, err)
	case kept == nil, kept.Record.Blind != (session == ""): // ?id= is only for sealed hosts' records, and ?uri= for all others
		authn.WriteError(w, http.StatusNotFound, errNone)
	default:
		authn.WriteJSON(w, http.StatusOK, kept)
	}
}

func (a *API) load(r *http.Request, from Source, who auth.Client, id string) (*Kept, error) {
	record, stored, err := from.Load(r.Context(), who.Tenant, r.PathValue("host"), id)
	if err != nil || record == nil {
		return nil, err
	}
	return &Kept{stored, record}, nil
}

func (a *API) failed(w http.ResponseWriter, _ error) {
	w.Header().Set("Retry-After", "2")
	authn.WriteError(w, http.StatusServiceUnavailable, errors.New("the relays' store of remembered sessions is unreachable"))
}
