package notify

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"ahprelay/auth"
	"ahprelay/broker/store"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/notify"
)

// How people set in what ways they are told, for any client token; what is set is the
// subject's. A way is told what the token may hear with which it was set, as long as that
// is good: of a device, as long as it is one of the person's. A token that allows less does not
// change it, nor when and of what its person is told.
//
//	GET    /api/notify                 Notifying
//	POST   /api/notify/ways            notify.Way → notify.Way: adds one; its secret is shown here only
//	PUT    /api/notify/ways/{id}       notify.Way → notify.Way: what is secret and not given stays, a token with its server only
//	DELETE /api/notify/ways/{id}
//	POST   /api/notify/ways/{id}/test  → notify.Delivery
//	PUT    /api/notify/times           {"quiet", "mutes"} → Notifying
//	POST   /api/notify/looking         somebody looks, for 30 s: who does is told 10 s later
//
// Errors are {"error"}.

// Notifying is what somebody has set, and was told.
type Notifying struct {
	Ways       []notify.Way      `json:"ways"`
	Mutes      []notify.Mute     `json:"mutes"`
	Quiet      *notify.Quiet     `json:"quiet,omitempty"`
	PushKey    string            `json:"pushKey,omitempty"` // for the browser's subscription
	Mail       bool              `json:"mail"`              // the relay sends mail
	Deliveries []notify.Delivery `json:"deliveries"`        // the last ten, the latest first
}

// Routes adds what is asked of events and of telling people.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/events", a.serveEvents)
	mux.HandleFunc("POST /api/answers/{id}", a.serveAnswer)
	mux.HandleFunc("GET /api/notify", a.told(a.serveNotify))
	mux.HandleFunc("POST /api/notify/ways", a.told(a.serveSetWay))
	mux.HandleFunc("PUT /api/notify/ways/{id}", a.told(a.serveSetWay))
	mux.HandleFunc("DELETE /api/notify/ways/{id}", a.told(a.serveRemoveWay))
	mux.HandleFunc("POST /api/notify/ways/{id}/test", a.told(a.serveTestWay))
	mux.HandleFunc("PUT /api/notify/times", a.told(a.serveTimes))
	mux.HandleFunc("POST /api/notify/looking", a.told(a.serveLooking))
}

// maxNotify bounds a request's body, in bytes.
const maxNotify = 64 << 10

type toldHandler func(w http.ResponseWriter, r *http.Request, who auth.Client)

// told serves who has a token, if this relay tells anybody of anything.
func (a *API) told(serve toldHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, ok := a.Caller.Client(w, r)
		if !ok {
			return
		}
		if a.teller == nil {
			authn.WriteError(w, http.StatusNotFound, errors.New("this relay notifies nobody"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxNotify)
		serve(w, r, who)
	}
}

// notifyErrors are the status of errors; of all others it is 400.
var notifyErrors = []struct {
	err    error
	status int
}{
	{notify.ErrLess, http.StatusForbidden}, {notify.ErrNoWay, http.StatusNotFound}, {notify.ErrTooMany, http.StatusConflict}, {notify.ErrTooOften, http.StatusTooManyRequests},
	{store.ErrAway, http.StatusServiceUnavailable},
}

// refuseNotify answers what cannot be set.
func refuseNotify(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	for _, one := range notifyErrors {
		if errors.Is(err, one.err) {
			status = one.status
		}
	}
	authn.WriteError(w, status, err)
}

// shownWay returns a way without what is secret: whoever has a URL of a push service
// or a webhook can use it.
func shownWay(way notify.Way) notify.Way {
	if u, err := url.Parse(way.URL); err == nil && way.URL != "" {
		way.URL = u.Scheme + "://" + u.Host + "/…"
		if way.Kind == notify.Ntfy {
			way.URL = u.Scheme + "://" + u.Host + u.Path
		}
	}
	way.Keys, way.Secret, way.Token, way.Who = nil, "", "", auth.Client{Access: way.Who.Access, Expires: way.Who.Expires}
	return way
}

func (a *API) serveNotify(w http.ResponseWriter, _ *http.Request, who auth.Client) {
	p := a.teller.Person(who.Tenant, who.Subject)
	quiet, mutes := p.TimesFor(who)
	shown := Notifying{
		Ways: []notify.Way{}, Mutes: append([]notify.Mute{}, mutes...), Quiet: quiet,
		PushKey: a.teller.PushKey(), Mail: a.teller.SendsMail(), Deliveries: append([]notify.Delivery{}, a.teller.Deliveries(who.Tenant, who.Subject)...),
	}
	for _, way := range p.Ways {
		shown.Ways = append(shown.Ways, shownWay(way))
	}
	authn.WriteJSON(w, http.StatusOK, shown)
}

func (a *API) serveSetWay(w http.ResponseWriter, r *http.Request, who auth.Client) {
	var way notify.Way
	if err := json.NewDecoder(r.Body).Decode(&way); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of a way: kind, url and so on"))
		return
	}
	way.ID = r.PathValue("id")
	given := way.Secret
	way, err := a.teller.SetWay(r.Context(), who, way)
	if err != nil {
		refuseNotify(w, err)
		return
	}
	shown := shownWay(way)
	if given == "" && r.Method == http.MethodPost {
		shown.Secret = way.Secret
	}
	authn.WriteJSON(w, http.StatusOK, shown)
}

func (a *API) serveRemoveWay(w http.ResponseWriter, r *http.Request, who auth.Client) {
	if err := a.teller.RemoveWay(who, r.PathValue("id")); err != nil {
		refuseNotify(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *API) serveTestWay(w http.ResponseWriter, r *http.Request, who auth.Client) {
	d, err := a.teller.Try(r.Context(), who, r.PathValue("id"))
	if err != nil {
		refuseNotify(w, err)
		return
	}
	authn.WriteJSON(w, http.StatusOK, d)
}

func (a *API) serveTimes(w http.ResponseWriter, r *http.Request, who auth.Client) {
	var body struct {
		Quiet *notify.Quiet `json:"quiet"`
		Mutes []notify.Mute `json:"mutes"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of quiet and mutes"))
		return
	}
	if err := a.teller.SetTimes(who, body.Quiet, body.Mutes); err != nil {
		refuseNotify(w, err)
		return
	}
	a.serveNotify(w, r, who)
}

func (a *API) serveLooking(w http.ResponseWriter, _ *http.Request, who auth.Client) {
	a.teller.Looking(who.Tenant, who.Subject)
	w.WriteHeader(http.StatusNoContent)
}
