package people

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/gateway/authn"
)

// A host's machine can share the host's sessions (host-agent share). It authenticates
// with the host-agent's credential, whose key signs the request, or with the enrolment
// token. The highest level that it can grant is operate, which the machine has anyway. It
// can also list and withdraw all links to the host, including those that people made.

// AgentShares is the body of POST /agent/shares.
type AgentShares struct {
	Challenge    string `json:"challenge"`    // of POST /agent/challenge
	KeySignature []byte `json:"keySignature"` // signature by the credential's key, with the SHA-256 of Ask as detail; see [auth.HostKey]
	Ask          string `json:"ask"`          // AgentShareAsk, as JSON
}

// AgentShareAsk is a host-agent's request to make, list or end links.
type AgentShareAsk struct {
	Do      string      `json:"do"` // make, list, end
	ID      string      `json:"id,omitempty"`
	All     bool        `json:"all,omitempty"`
	Session string      `json:"session,omitempty"`
	Level   auth.Access `json:"level,omitempty"`
	Seconds int         `json:"seconds,omitempty"`
	People  int         `json:"people,omitempty"`
	Files   bool        `json:"files,omitempty"`
}

func (a *shares) serveAgentShares(w http.ResponseWriter, r *http.Request) {
	host, ok := a.Caller.Host(w, r)
	if !ok {
		return
	}
	var body AgentShares
	var ask AgentShareAsk
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body)
	if err == nil {
		err = json.Unmarshal([]byte(body.Ask), &ask)
	}
	if err != nil {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is not JSON with challenge, keySignature and ask"))
		return
	}
	sum := sha256.Sum256([]byte(body.Ask))
	if !a.Agents.ProvesKey(w, host, auth.ToShare, body.Challenge, base64.RawURLEncoding.EncodeToString(sum[:]), body.KeySignature) {
		return
	}
	if err := a.Agents.MayTakeOver(host); err != nil {
		a.Caller.Unauthorized(w, r, err)
		return
	}
	who := people.Person{Tenant: host.Tenant, Subject: "host-agent of " + host.Host, Access: auth.AccessWrite, Hosts: []string{host.Host}, Files: true, Origins: host.Derive()}
	if ask.Do == "make" {
		a.makeShare(w, r, who, "", time.Time{}, shareAsk{host.Host, ask.Session, ask.Level, ask.Seconds, ask.People, ask.Files})
		return
	}
	a.listOrEnd(w, r, who, host, ask)
}

// listOrEnd handles a host-agent's request to list or withdraw links to its host.
func (a *shares) listOrEnd(w http.ResponseWriter, r *http.Request, who people.Person, host auth.Enrolment, ask AgentShareAsk) {
	list, err := a.People.Shares(host.Tenant, "")
	if err != nil {
		a.failed(w, err)
		return
	}
	var theirs, named []people.Share
	for _, one := range list {
		if one.Host == host.Host {
			theirs = append(theirs, one)
			if ask.All || one.ID == ask.ID {
				named = append(named, one)
			}
		}
	}
	switch {
	case ask.Do == "list":
		a.showShares(w, host.Tenant, theirs)
	case ask.Do == "end" && len(named) == 0 && !ask.All:
		authn.WriteError(w, http.StatusNotFound, people.ErrNone)
	case ask.Do == "end":
		a.takeBack(w, r, who, named...)
	default:
		authn.WriteError(w, http.StatusBadRequest, errors.New("unknown value of do; want make, list or end"))
	}
}
