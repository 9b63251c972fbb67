package notify

import (
	"errors"
	"net/http"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/broker/store"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/notify"
)

// Notification settings belong to the subject of a client's token. A target receives the events
// that the token with which it was added may see, as long as that token is valid. If a device added
// it, the target works while the device belongs to the person. A token with less authority can
// change neither the target nor the person's quiet hours and mutes.
//
//	GET    /api/notify                 Notifying
//	POST   /api/notify/ways            notify.Target → notify.Target: adds a target; only this response has its secret
//	PUT    /api/notify/ways/{id}       notify.Target → notify.Target: omitted secrets stay, but a token only if its server stays
//	DELETE /api/notify/ways/{id}
//	POST   /api/notify/ways/{id}/test  → notify.Delivery
//	PUT    /api/notify/times           {"quiet", "mutes"} → Notifying
//	POST   /api/notify/looking         a page is visible: for 30 s, notifications to its person are delayed by 10 s
//
// Errors are {"error"}.

// Notifying holds a person's settings and latest deliveries.
type Notifying struct {
	Targets    []notify.Target   `json:"ways"`
	Mutes      []notify.Mute     `json:"mutes"` // those of hosts and sessions that the token may see
	Quiet      *notify.Quiet     `json:"quiet,omitempty"`
	PushKey    string            `json:"pushKey,omitempty"` // for the browser's subscription
	Mail       bool              `json:"mail"`              // the relay sends mail
	URL        string            `json:"url,omitempty"`     // the relay's public address, for links
	Deliveries []notify.Delivery `json:"deliveries"`        // of the last ten those whose events the token may see, the latest first
}

func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/events", a.serveEvents)
	mux.HandleFunc("POST /api/answers/{id}", a.serveAnswer)
	mux.HandleFunc("POST /api/letters/{way}", a.serveLetter)
	mux.HandleFunc("GET /api/notify", a.settings(a.serveNotify))
	mux.HandleFunc("POST /api/notify/ways", a.settings(a.serveSetTarget))
	mux.HandleFunc("PUT /api/notify/ways/{id}", a.settings(a.serveSetTarget))
	mux.HandleFunc("DELETE /api/notify/ways/{id}", a.settings(a.serveRemoveTarget))
	mux.HandleFunc("POST /api/notify/ways/{id}/test", a.settings(a.serveTestTarget))
	mux.HandleFunc("PUT /api/notify/times", a.settings(a.serveTimes))
	mux.HandleFunc("POST /api/notify/looking", a.settings(a.serveLooking))
}

// maxNotify is the longest request body in bytes.
const maxNotify = 64 << 10

type settingsHandler func(w http.ResponseWriter, r *http.Request, who auth.Client)

// settings authenticates a request, and refuses it if notifications are not configured.
func (a *API) settings(serve settingsHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, ok := a.Caller.Client(w, r)
		if !ok {
			return
		}
		if a.notifier == nil {
			authn.WriteError(w, http.StatusNotFound, errors.New("notifications are not configured on this relay"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxNotify)
		serve(w, r, who)
	}
}

// notifyErrors maps errors to HTTP statuses. All other errors are 400.
var notifyErrors = []struct {
	err    error
	status int
}{
	{notify.ErrLess, http.StatusForbidden}, {notify.ErrNoTarget, http.StatusNotFound}, {notify.ErrTooMany, http.StatusConflict}, {notify.ErrTooOften, http.StatusTooManyRequests},
	{store.ErrAway, http.StatusServiceUnavailable}, {store.ErrFull, http.StatusInsufficientStorage},
}

func refuseNotify(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	for _, one := range notifyErrors {
		if errors.Is(err, one.err) {
			status = one.status
		}
	}
	authn.WriteError(w, status, err)
}

func (a *API) serveNotify(w http.ResponseWriter, _ *http.Request, who auth.Client) {
	p := a.notifier.Person(who.Tenant, who.Subject)
	quiet, mutes := a.notifier.TimesFor(&p, who)
	shown := Notifying{
		Targets: []notify.Target{}, Mutes: []notify.Mute{}, Quiet: quiet,
		PushKey: a.notifier.PushKey(), Mail: a.notifier.SendsMail(), URL: a.notifier.PublicURL(), Deliveries: []notify.Delivery{},
	}
	for _, m := range mutes {
		if notify.MayHear(who, who.Tenant, m.Host, &notice.Event{Session: m.Session}) {
			shown.Mutes = append(shown.Mutes, m)
		}
	}
	for _, d := range a.notifier.Deliveries(who.Tenant, who.Subject) {
		if d.Kind == notice.Test || notify.MayHear(who, who.Tenant, d.Host, &notice.Event{Session: d.Session, Only: d.Only}) {
			shown.Deliveries = append(shown.Deliveries, d)
		}
	}
	for _, target := range p.Targets {
		shown.Targets = append(shown.Targets, a.notifier.Redacted(target, who))
	}
	authn.WriteJSON(w, http.StatusOK, shown)
}

func (a *API) serveSetTarget(w http.ResponseWriter, r *http.Request, who auth.Client) {
	var target notify.Target
	if !authn.ReadJSON(w, r, &target, "body: want a JSON notification target with kind, url and so on") {
		return
	}
	target.ID = r.PathValue("id")
	given := target.Secret
	target, err := a.notifier.SetTarget(r.Context(), who, target)
	if err != nil {
		refuseNotify(w, err)
		return
	}
	shown := a.notifier.Redacted(target, who)
	if given == "" && r.Method == http.MethodPost {
		shown.Secret = target.Secret
	}
	authn.WriteJSON(w, http.StatusOK, shown)
}

func (a *API) serveRemoveTarget(w http.ResponseWriter, r *http.Request, who auth.Client) {
	if err := a.notifier.RemoveTarget(who, r.PathValue("id")); err != nil {
		refuseNotify(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *API) serveTestTarget(w http.ResponseWriter, r *http.Request, who auth.Client) {
	d, err := a.notifier.Try(r.Context(), who, r.PathValue("id"))
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
	if !authn.ReadJSON(w, r, &body, "body: want JSON with quiet and mutes") {
		return
	}
	if err := a.notifier.SetTimes(who, body.Quiet, body.Mutes); err != nil {
		refuseNotify(w, err)
		return
	}
	a.serveNotify(w, r, who)
}

func (a *API) serveLooking(w http.ResponseWriter, _ *http.Request, who auth.Client) {
	a.notifier.Looking(who.Tenant, who.Subject)
	w.WriteHeader(http.StatusNoContent)
}
