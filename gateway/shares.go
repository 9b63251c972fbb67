package gateway

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/people"
)

// Who is in shares what they may do themselves, without who runs the relay, and sees who
// looks.
//
//	POST   /api/shares       {"host", "session", "level", "seconds", "people", "files"} → {"id", "link", "qr", "expires"}
//	GET    /api/shares       → {"shares": [people.Share and "watching": [Viewer]]}: one's own, all for who owns the tenant
//	DELETE /api/shares       takes all of one's own back
//	DELETE /api/shares/{id}  one
//
// A link is good at the host-agent as far as the host's owner lets it: a relay widens nothing.

// Bounds of shares.
const (
	defaultShare = time.Hour
	maxShareTTL  = 7 * 24 * time.Hour
	sharePeople  = 64 // connections at a time, unless it is said
)

// A Viewer is a connection that a link has made, at this relay.
type Viewer struct {
	Conn    string    `json:"conn"`
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
}

func (s *Server) shareRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /api/shares", s.person(s.serveMakeShare))
	mux.HandleFunc("GET /api/shares", s.person(s.serveShares))
	mux.HandleFunc("DELETE /api/shares", s.person(s.serveTakeBackAll))
	mux.HandleFunc("DELETE /api/shares/{id}", s.person(s.serveTakeBack))
}

// shareAsk is the body of POST /api/shares.
type shareAsk struct {
	Host, Session string
	Level         auth.Access
	Seconds       int
	People        int
	Files         bool
}

// client returns what a link allows that somebody asks for.
func (ask *shareAsk) client(who people.Person, device string) (auth.Client, error) {
	if ask.Level == "" {
		ask.Level = auth.AccessRead
	}
	if ask.People == 0 {
		ask.People = sharePeople
	}
	ttl := time.Duration(ask.Seconds) * time.Second
	if ttl == 0 {
		ttl = defaultShare
	}
	switch {
	case ask.Host == "" || strings.Contains(ask.Host, "*"):
		return auth.Client{}, errors.New("want the name of one host")
	case !strings.Contains(ask.Session, ":") || strings.Contains(ask.Session, "*"):
		return auth.Client{}, errors.New("want the URI of one session")
	case ttl < 0 || ttl > maxShareTTL:
		return auth.Client{}, fmt.Errorf("seconds are %d; want 1 to %d", ask.Seconds, int(maxShareTTL.Seconds()))
	case ask.Level.Includes(auth.AccessAdmin):
		return auth.Client{}, errors.New("to own a host is not shared by a link; invite somebody")
	case !who.Access.Includes(ask.Level):
		return auth.Client{}, fmt.Errorf("level %s is more than you have", ask.Level.Level())
	case ask.Files && len(who.Channels) > 0 && !who.Files:
		return auth.Client{}, errors.New("files are more than you have")
	case ask.People < 0:
		return auth.Client{}, fmt.Errorf("people are %d; want 1 or more", ask.People)
	}
	c, err := narrowed(who, ask.Level, []string{ask.Host}, []string{ask.Session})
	c.ID = rand.Text()
	c.Subject = "link-" + strings.ToLower(c.ID[:10]) // links do not know each other
	c.Files, c.MaxConnections, c.Device = ask.Files, ask.People, device
	if c.Access == auth.AccessRead {
		c.Audience, c.Reverse = c.Subject, false
	}
	c.Expires = time.Now().Add(ttl)
	return c, err
}

func (s *Server) serveMakeShare(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
	var ask shareAsk
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		writeError(w, http.StatusBadRequest, errors.New("body is no JSON of host, session, level, seconds and people"))
		return
	}
	client, err := ask.client(who, device)
	client.Expires = s.atMost(client.Expires, device)
	var token string
	if err == nil {
		token, err = s.cfg.Keys.IssueClient(client)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	err = s.cfg.People.Keep(people.Share{
		ID: client.ID, Tenant: who.Tenant, By: who.Subject, Subject: client.Subject, Host: ask.Host, Session: ask.Session,
		Access: client.Access, People: client.MaxConnections, Made: time.Now().UTC(), Expires: client.Expires.UTC(),
	})
	switch {
	case errors.Is(err, people.ErrTooMany), errors.Is(err, people.ErrFull):
		writeError(w, http.StatusServiceUnavailable, err)
		return
	case err != nil:
		s.failed(w, err)
		return
	}
	line := shareLine(client, s.address(r))
	line.Detail += ", by " + who.Subject
	s.audit.write(line)
	link := s.publicURL(r) + "/#" + url.Values{"host": {ask.Host}, "session": {ask.Session}, "token": {token}}.Encode()
	writeJSON(w, http.StatusOK, map[string]any{"id": client.ID, "link": link, "qr": qrRows(link), "expires": client.Expires.UTC()})
}

// sharesOf returns the shares that somebody may see to.
func (s *Server) sharesOf(who people.Person) ([]people.Share, error) {
	by := who.Subject
	if who.Owns() {
		by = ""
	}
	return s.cfg.People.Shares(who.Tenant, by)
}

func (s *Server) serveShares(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	list, err := s.sharesOf(who)
	if err != nil {
		s.failed(w, err)
		return
	}
	watching := map[string][]Viewer{}
	for _, c := range s.hosts.all() {
		if c.who.Tenant == who.Tenant {
			watching[c.who.ID] = append(watching[c.who.ID], Viewer{c.id, c.remote, c.since.UTC()})
		}
	}
	type shown struct {
		people.Share
		Level    string   `json:"level"`
		Watching []Viewer `json:"watching"`
	}
	shares := []shown{}
	for _, one := range list {
		shares = append(shares, shown{one, one.Access.Level(), append([]Viewer{}, watching[one.ID]...)})
	}
	writeJSON(w, http.StatusOK, map[string]any{"shares": shares})
}

func (s *Server) serveTakeBack(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	list, err := s.sharesOf(who)
	if err != nil {
		s.failed(w, err)
		return
	}
	for _, one := range list {
		if one.ID == r.PathValue("id") {
			s.takeBack(w, r, who, one)
			return
		}
	}
	writeError(w, http.StatusNotFound, people.ErrNone)
}

func (s *Server) serveTakeBackAll(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	list, err := s.cfg.People.Shares(who.Tenant, who.Subject)
	if err != nil {
		s.failed(w, err)
		return
	}
	s.takeBack(w, r, who, list...)
}

// takeBack ends links, here and at all relays.
func (s *Server) takeBack(w http.ResponseWriter, r *http.Request, who people.Person, list ...people.Share) {
	for _, one := range list {
		s.audit.write(auditLine{Event: "revoke", Tenant: who.Tenant, Subject: who.Subject, Host: one.Host, Token: one.ID, Address: s.address(r), Detail: "link to " + one.Session})
		err := s.revoked.Add(newRevocation(RevokeRequest{Token: one.ID, Expires: one.Expires}))
		if err == nil {
			err = s.cfg.People.TakeBack(one.ID)
		}
		if err != nil && !errors.Is(err, people.ErrNone) {
			s.failed(w, err)
			return
		}
	}
	writeJSON(w, http.StatusOK, map[string]int{"ended": len(list)})
}
