package people

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// An owner of a host can share its sessions by links without the relay's operator, and see the
// viewers.
//
//	POST   /api/shares       needs the level own: {"host", "session", "level", "seconds", "people", "files"} → {"id", "link", "qr", "expires"}
//	GET    /api/shares       → {"shares": [people.Share and "watching": [Viewer]]}: the caller's own, or all for an owner of the tenant
//	DELETE /api/shares       withdraws all of the caller's links
//	DELETE /api/shares/{id}  withdraws a link
//	POST   /auth/share       {"link"} → {"token", "host", "session", "level", "expires"}: link is the part after /s#
//	POST   /agent/shares     {"challenge", "keySignature", "ask"} → depends on ask: the same for a host-agent, see agentshares.go
//
// The host-agent's own limits for links apply too; a relay cannot extend them.

// Limits for links.
const (
	defaultShare = time.Hour
	maxShareTTL  = 7 * 24 * time.Hour
	sharePeople  = 64 // default limit of simultaneous connections
)

// A Viewer is a connection made with a link, at this relay.
type Viewer struct {
	Conn    string    `json:"conn"`
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
}

// shares serves links to sessions.
type shares struct{ *base }

func (a *shares) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /api/shares", a.person(a.serveMakeShare))
	mux.HandleFunc("GET /api/shares", a.person(a.serveShares))
	mux.HandleFunc("DELETE /api/shares", a.person(a.serveTakeBackAll))
	mux.HandleFunc("DELETE /api/shares/{id}", a.person(a.serveTakeBack))
	mux.HandleFunc("POST /auth/share", a.serveFollow)
	mux.HandleFunc("POST /agent/shares", a.serveAgentShares)
}

// shareAsk is the body of POST /api/shares.
type shareAsk struct {
	Host, Session string
	Level         auth.Access
	Seconds       int
	People        int
	Files         bool
}

// share returns the requested link. Each branch refuses an invalid field.
func (ask *shareAsk) share(who people.Person, device string) (people.Share, error) {
	ask.Level = cmp.Or(ask.Level, auth.AccessRead)
	ask.People = cmp.Or(ask.People, sharePeople)
	ttl := cmp.Or(time.Duration(ask.Seconds)*time.Second, defaultShare)
	switch {
	case ask.Host == "" || strings.Contains(ask.Host, "*"):
		return people.Share{}, errors.New("want the name of one host")
	case !strings.Contains(ask.Session, ":") || strings.Contains(ask.Session, "*"):
		return people.Share{}, errors.New("want the URI of one session")
	case ttl < 0 || ttl > maxShareTTL:
		return people.Share{}, fmt.Errorf("seconds are %d; want 1 to %d", ask.Seconds, int(maxShareTTL.Seconds()))
	case ask.Level.Includes(auth.AccessAdmin):
		return people.Share{}, errors.New("a link cannot give the level own; invite a person")
	case !who.Access.Includes(ask.Level):
		return people.Share{}, fmt.Errorf("level %s is above your own", ask.Level.Level())
	case ask.Files && len(who.Channels) > 0 && !who.Files:
		return people.Share{}, errors.New("you have no access to files")
	case ask.People < 0:
		return people.Share{}, fmt.Errorf("people are %d; want 1 or more", ask.People)
	}
	gives, err := narrowed(who, ask.Level, []string{ask.Host}, []string{ask.Session})
	id, now := rand.Text(), time.Now().UTC()
	return people.Share{
		ID: id, Tenant: who.Tenant, By: who.Subject, Subject: "link-" + strings.ToLower(id[:10]), // links do not share a subject
		Host: ask.Host, Session: ask.Session, Access: gives.Access, Files: ask.Files, Methods: gives.Methods, Device: device, Origins: gives.Origins,
		People: ask.People, Made: now, Expires: now.Add(ttl).Truncate(time.Second),
	}, err
}

func (a *shares) serveMakeShare(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	who, until, err := a.granter(who, device)
	if err != nil {
		a.mayNotGrant(w, err)
		return
	}
	if !who.Owns() { // the owner decides who comes to the hosts
		authn.WriteError(w, http.StatusForbidden, errors.New("only the host's owner can share its sessions"))
		return
	}
	var ask shareAsk
	if !authn.ReadJSON(w, r, &ask, "body is not JSON with host, session, level, seconds and people") {
		return
	}
	a.makeShare(w, r, who, device, until, ask)
}

// makeShare makes a link that ends at until or earlier; zero means no limit.
func (a *shares) makeShare(w http.ResponseWriter, r *http.Request, who people.Person, device string, until time.Time, ask shareAsk) {
	share, err := ask.share(who, device)
	share.Expires = atMost(share.Expires, until)
	client := share.Client()
	if err == nil {
		_, err = a.Caller.Keys.Tokens().IssueClient(client) // to detect errors before the link is used
	}
	if err != nil {
		authn.WriteError(w, http.StatusBadRequest, err)
		return
	}
	secret, err := a.People.Keep(share)
	if err != nil {
		a.failed(w, err)
		return
	}
	line := audit.Shared(client, a.Caller.Address(r))
	line.Detail += ", by " + who.Subject
	a.Caller.Audit.Write(line)
	link := a.Caller.URL(r) + "/s#" + secret
	authn.WriteJSON(w, http.StatusOK, map[string]any{"id": share.ID, "link": link, "qr": qrRows(link), "expires": share.Expires})
}

func (a *shares) serveFollow(w http.ResponseWriter, r *http.Request) {
	var body struct{ Link string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		a.refuseGrant(w, r, errors.New("body is not JSON with link"))
		return
	}
	share, err := a.People.Follow(body.Link)
	if errors.Is(err, people.ErrNone) {
		err = ErrLinkOver
	}
	var token string
	if err == nil {
		token, err = a.Caller.Keys.Tokens().IssueClient(share.Client())
	}
	if err != nil {
		a.refuseGrant(w, r, err)
		return
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"token": token, "host": share.Host, "session": share.Session, "level": share.Access.Level(), "expires": share.Expires})
}

// ErrLinkOver reports that a link was withdrawn or has expired.
var ErrLinkOver = errors.New("this link was taken back or has expired; ask its sender for a new link")

// sharesOf returns the links that a person may manage.
func (a *shares) sharesOf(who people.Person) ([]people.Share, error) {
	by := who.Subject
	if who.OwnsAll() {
		by = ""
	}
	return a.People.Shares(who.Tenant, by)
}

func (a *shares) serveShares(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	list, err := a.sharesOf(who)
	if err != nil {
		a.failed(w, err)
		return
	}
	a.showShares(w, who.Tenant, list)
}

// A ShownShare is a link with its viewers.
type ShownShare struct {
	people.Share
	Level    string   `json:"level"`
	Watching []Viewer `json:"watching"`
}

func (a *shares) showShares(w http.ResponseWriter, tenant string, list []people.Share) {
	watching := a.Watching(tenant)
	shares := []ShownShare{}
	for _, one := range list {
		one.Secret = ""
		shares = append(shares, ShownShare{one, one.Access.Level(), append([]Viewer{}, watching[one.ID]...)})
	}
	authn.WriteJSON(w, http.StatusOK, map[string]any{"shares": shares})
}

func (a *shares) serveTakeBack(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	list, err := a.sharesOf(who)
	for _, one := range list {
		if one.ID == r.PathValue("id") {
			a.takeBack(w, r, who, one)
			return
		}
	}
	a.failed(w, cmp.Or(err, people.ErrNone))
}

func (a *shares) serveTakeBackAll(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	list, err := a.People.Shares(who.Tenant, who.Subject)
	if err != nil {
		a.failed(w, err)
		return
	}
	a.takeBack(w, r, who, list...)
}

// takeBack withdraws links at all relays.
func (a *shares) takeBack(w http.ResponseWriter, r *http.Request, who people.Person, list ...people.Share) {
	var unsaved error
	for _, one := range list {
		a.Caller.Audit.Write(audit.Line{Event: "revoke", Tenant: who.Tenant, Subject: who.Subject, Host: one.Host, Token: one.ID, Address: a.Caller.Address(r), Detail: "link to " + one.Session})
		err := a.Caller.Revoked.Add(auth.Revocation{Token: one.ID, At: time.Now().UTC(), Until: one.Expires, By: who.Tenant})
		if errors.Is(err, registry.ErrNotSaved) {
			unsaved, err = err, nil
		}
		if err == nil {
			err = a.People.TakeBack(one.ID)
		}
		if err != nil && !errors.Is(err, people.ErrNone) {
			a.failed(w, err)
			return
		}
	}
	if unsaved != nil {
		a.failed(w, unsaved)
		return
	}
	authn.WriteJSON(w, http.StatusOK, map[string]int{"ended": len(list)})
}
