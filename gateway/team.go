package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"ahprelay/gateway/audit"
	"ahprelay/people"
)

// Who owns a tenant, all of its hosts, sees to who is in, and what they did.
//
//	GET    /api/people            → {"people": [ShownPerson]}
//	DELETE /api/people/{subject}  ends all tokens and devices of somebody, and forgets them
//	GET    /api/audit             → {"since", "lines": [ShownLine]}: of this relay since it was started, the latest first

// A ShownPerson is somebody as the owner sees them.
type ShownPerson struct {
	Subject  string    `json:"subject"`
	Name     string    `json:"name,omitempty"`
	Level    string    `json:"level"`
	Hosts    []string  `json:"hosts"`
	Issuer   string    `json:"issuer,omitempty"` // identity provider
	Trouble  string    `json:"trouble,omitempty"`
	Added    time.Time `json:"added"`
	Devices  int       `json:"devices"`
	LastSeen time.Time `json:"lastSeen,omitzero"`
}

func (s *Server) teamRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/people", s.person(s.owner(s.servePeople)))
	mux.HandleFunc("DELETE /api/people/{subject}", s.person(s.owner(s.serveRemovePerson)))
	mux.HandleFunc("GET /api/audit", s.person(s.owner(s.serveAudit)))
}

// owner serves who owns all of a tenant.
func (s *Server) owner(serve personHandler) personHandler {
	return func(w http.ResponseWriter, r *http.Request, who people.Person, device string) {
		if !who.OwnsAll() {
			writeError(w, http.StatusForbidden, errors.New("this is for who owns the tenant, with all of its hosts"))
			return
		}
		serve(w, r, who, device)
	}
}

func (s *Server) servePeople(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	list, err := s.cfg.People.People(who.Tenant)
	devices, e := s.cfg.People.Devices(who.Tenant, "")
	if err = errors.Join(err, e); err != nil {
		s.failed(w, err)
		return
	}
	shown := []ShownPerson{}
	for _, p := range list {
		one := ShownPerson{Subject: p.Subject, Name: p.Name, Level: p.Access.Level(), Hosts: p.Hosts, Issuer: p.Issuer, Added: p.Added}
		if may, _, err := s.allowed(p); err != nil {
			one.Trouble = err.Error()
		} else {
			one.Level, one.Hosts = may.Access.Level(), may.Hosts
		}
		for _, d := range devices {
			if d.Subject != p.Subject {
				continue
			}
			one.Devices++
			if d.Seen.After(one.LastSeen) {
				one.LastSeen = d.Seen
			}
		}
		shown = append(shown, one)
	}
	writeJSON(w, http.StatusOK, map[string]any{"people": shown})
}

// serveRemovePerson ends what somebody has, at all relays, and forgets them. Links of theirs end with their
// devices.
func (s *Server) serveRemovePerson(w http.ResponseWriter, r *http.Request, who people.Person, _ string) {
	subject := r.PathValue("subject")
	if subject == who.Subject {
		writeError(w, http.StatusBadRequest, errors.New("nobody removes themselves: remove your devices, or have another owner do it"))
		return
	}
	devices, err := s.cfg.People.Devices(who.Tenant, subject)
	if err != nil {
		s.failed(w, err)
		return
	}
	s.audit.Write(audit.Line{Event: "revoke", Tenant: who.Tenant, Subject: who.Subject, Address: s.address(r), Detail: fmt.Sprintf("person %s, with %d devices", subject, len(devices))})
	err = s.revoked.Add(newRevocation(RevokeRequest{Tenant: who.Tenant, Subject: subject}))
	for _, d := range devices { // which have made tokens and links
		err = errors.Join(err, s.revoked.Add(newRevocation(RevokeRequest{Token: d.ID, Expires: time.Now().Add(maxTokenTTL + time.Hour)})))
	}
	if err == nil {
		err = s.cfg.People.Forget(who.Tenant, subject)
	}
	if errors.Is(err, people.ErrNone) {
		writeError(w, http.StatusNotFound, err)
		return
	}
	if err != nil {
		s.failed(w, err)
		return
	}
	writeJSON(w, http.StatusOK, struct{}{})
}

func (s *Server) serveAudit(w http.ResponseWriter, _ *http.Request, who people.Person, _ string) {
	writeJSON(w, http.StatusOK, map[string]any{"since": s.audit.Since(), "lines": append([]audit.ShownLine{}, s.audit.Latest(who.Tenant)...)})
}
