// Package waiting serves items that people leave for offline hosts (package broker/waiting) over
// HTTP. Each person sees only their own.
//
//	GET    /api/waiting                    → {"items": [Shown], "now"}: the items for all hosts of the token
//	PUT    /api/hosts/{host}/waiting/{id}    Item → Shown; 409 {"error", "item"} if the stored item has changed or the host has received it
//	DELETE /api/hosts/{host}/waiting/{id}    removes a finished or expired item
//
// PUT and DELETE need a signed-in device, so that a copied token can leave nothing.
//
// The package's only state is a rate limit for each person. An [API] is safe for concurrent use,
// and has no lock.
package waiting

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/waiting"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	keeping "ahprelay/gateway/waiting"
	"ahprelay/internal/fair"
)

// Rates of changes.
const (
	putEvery  = time.Second // interval of a person's changes, after putAtOnce
	putAtOnce = 40
)

// An API serves items.
type API struct {
	caller *authn.Checker
	keeper func() *keeping.Keeper
	puts   *fair.Buckets
}

// New returns an API. keeper returns nil until the relay has started its Keeper.
func New(caller *authn.Checker, keeper func() *keeping.Keeper) *API {
	return &API{caller, keeper, fair.NewBuckets(putEvery, putAtOnce)}
}

// Routes registers the handlers.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/waiting", a.serveList)
	mux.HandleFunc("PUT /api/hosts/{host}/waiting/{id}", a.servePut)
	mux.HandleFunc("DELETE /api/hosts/{host}/waiting/{id}", a.serveDelete)
}

// Shown is an item as shown to its author's devices.
type Shown struct {
	Host    string          `json:"host"`
	Item    waiting.Item    `json:"item"`
	By      string          `json:"by,omitempty"` // name of the device with the latest version
	First   time.Time       `json:"first"`
	At      time.Time       `json:"at"`
	Woken   bool            `json:"woken,omitempty"`
	Expired bool            `json:"expired,omitempty"`
	Result  *waiting.Result `json:"result,omitempty"`
}

func shown(s *keeping.Stored) *Shown {
	return &Shown{s.Host, s.Item, s.Who.DeviceName, s.First, s.At, s.Woken, s.Expired(time.Now()), s.Result}
}

var errNotReady = errors.New("this relay has just started; try again")

// enter returns the caller. If ok is false, it has responded with an error. Changes need
// a device.
func (a *API) enter(w http.ResponseWriter, r *http.Request, changes bool) (who auth.Client, k *keeping.Keeper, ok bool) {
	if who, ok = a.caller.Client(w, r); !ok {
		return who, nil, false
	}
	k = a.keeper()
	switch {
	case k == nil:
		authn.WriteError(w, http.StatusServiceUnavailable, errNotReady)
	case changes && !who.MayReach(who.Tenant, r.PathValue("host")):
		authn.WriteError(w, http.StatusNotFound, keeping.ErrNone)
	case changes && (who.Key == "" || who.Device == ""):
		authn.WriteError(w, http.StatusForbidden, errors.New("leaving an item for a host needs a signed-in device; a token alone is not enough"))
	case changes && !who.Access.Includes(auth.AccessTalk):
		authn.WriteError(w, http.StatusForbidden, errors.New("leaving an item for a host needs the level talk"))
	case changes && a.puts.Take(who.Tenant+" "+who.Subject) > 0:
		w.Header().Set("Retry-After", "2")
		authn.WriteError(w, http.StatusTooManyRequests, errors.New("too many changes; wait a few seconds"))
	default:
		return who, k, true
	}
	return who, nil, false
}

func (a *API) serveList(w http.ResponseWriter, r *http.Request) {
	who, k, ok := a.enter(w, r, false)
	if !ok {
		return
	}
	list := []*Shown{}
	for _, s := range k.Of(who) {
		list = append(list, shown(&s))
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"items": list, "now": time.Now().UTC()})
}

func (a *API) servePut(w http.ResponseWriter, r *http.Request) {
	who, k, ok := a.enter(w, r, true)
	if !ok {
		return
	}
	var item waiting.Item
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, waiting.MaxItem)).Decode(&item)
	if err == nil {
		err = item.Check()
	}
	if err == nil && item.ID != r.PathValue("id") {
		err = errors.New("the item's ID differs from the ID in the path")
	}
	if err != nil {
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	}
	host := r.PathValue("host")
	kept, err := k.Put(r.Context(), who, host, item)
	if err != nil {
		a.failed(w, err, kept)
		return
	}
	a.caller.Audit.Write(audit.Line{Event: "waiting", Tenant: who.Tenant, Subject: who.Subject, Host: host, Token: who.ID, Address: a.caller.Address(r), Detail: item.ID})
	authn.WriteJSON(w, http.StatusOK, shown(kept))
}

func (a *API) serveDelete(w http.ResponseWriter, r *http.Request) {
	who, k, ok := a.enter(w, r, true)
	if !ok {
		return
	}
	err := keeping.ErrNone
	if id := r.PathValue("id"); waiting.IsID(id) {
		err = k.Remove(who, r.PathValue("host"), id)
	}
	if err != nil {
		a.failed(w, err, nil)
		return
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{})
}

var statuses = []struct {
	err    error
	status int
}{
	{keeping.ErrConflict, http.StatusConflict}, {keeping.ErrOver, http.StatusConflict}, {keeping.ErrWaits, http.StatusConflict},
	{keeping.ErrExpired, http.StatusBadRequest}, {keeping.ErrNone, http.StatusNotFound}, {keeping.ErrHost, http.StatusNotFound}, {keeping.ErrFull, http.StatusInsufficientStorage},
}

func (a *API) failed(w http.ResponseWriter, err error, current *keeping.Stored) {
	answer, status := map[string]any{}, http.StatusServiceUnavailable
	answer["error"] = keeping.ErrAway.Error()
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			answer["error"], status = s.err.Error(), s.status
		}
	}
	if current != nil {
		answer["item"] = shown(current)
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	authn.WriteJSON(w, status, answer)
}
