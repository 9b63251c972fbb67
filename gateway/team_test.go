package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/audit"
)

// invited has the phone's owner invite a person, and returns that person's phone after
// it has accepted.
func (p *phone) invited(ask map[string]any) *phone {
	p.Helper()
	var made struct{ Link string }
	p.do("POST", "/api/invites", ask, &made)
	guest := newPhone(p.T, p.relay)
	if status, said := guest.setUp(made.Link); status != http.StatusOK {
		p.Fatalf("using the invitation %v: HTTP %d %s; want 200", ask, status, said)
	}
	return guest
}

// An owner of all hosts lists the people and the audit log, and removes a person, whose
// tokens and links end. An owner of some hosts can do none of this.
func TestOwnerOfAllHostsManagesTheTeam(t *testing.T) {
	_, ada := setUp(t)
	bob := ada.invited(map[string]any{"subject": "bob", "level": "own", "hosts": []string{"laptop"}})
	carol := ada.invited(map[string]any{"subject": "carol", "level": "own", "hosts": []string{"lab-*"}})
	for _, guest := range []*phone{bob, carol} {
		guest.refused(403, "owners of all hosts", "GET", "/api/people", nil)
		guest.refused(403, "owners of all hosts", "GET", "/api/audit", nil)
		guest.refused(403, "owners of all hosts", "DELETE", "/api/people/owner", nil)
		guest.refused(404, "", "DELETE", "/api/devices/"+ada.in.Device, nil)
	}
	var team struct{ People []peopleapi.ShownPerson }
	ada.do("GET", "/api/people", nil, &team)
	if len(team.People) != 3 || team.People[0].Subject != "bob" || team.People[0].Level != "own" || team.People[0].Devices != 1 || team.People[0].LastSeen.IsZero() {
		t.Errorf("the people are %+v; want three, bob first with the level own and one device", team.People)
	}

	var made struct{ Token string }
	var link struct{ Link string }
	bob.do("POST", "/api/tokens", map[string]any{}, &made)
	bob.do("POST", "/api/shares", map[string]any{"host": "laptop", "session": "mock:/1"}, &link)
	shared, _ := follow(t, ada.relay, link.Link)
	ada.refused(400, "cannot remove yourself", "DELETE", "/api/people/owner", nil)
	ada.do("DELETE", "/api/people/bob", nil, nil)
	for what, token := range map[string]string{"a token": made.Token, "a link": shared.Token} {
		if status, said := ada.send("GET", "/api/hosts", token, "", nil, nil); status != http.StatusUnauthorized || !strings.Contains(said, "revoked") {
			t.Errorf("%s made by a removed person: HTTP %d %s; want 401, revoked", what, status, said)
		}
	}
	bob.denied(400, "removed", "POST", "/auth/token", url.Values{"grant_type": {peopleapi.GrantDevice}, "device": {bob.in.Device}})
	if _, said := follow(t, ada.relay, link.Link); !strings.Contains(said, "removed") {
		t.Errorf("following a link made by a removed person: %s; want removed", said)
	}
	ada.refused(404, "", "DELETE", "/api/people/bob", nil)

	var audit struct{ Lines []audit.ShownLine }
	ada.do("GET", "/api/audit", nil, &audit)
	if len(audit.Lines) < 4 || audit.Lines[0].Event != "revoke" || audit.Lines[0].Subject != "owner" || !strings.Contains(audit.Lines[0].Detail, "bob") {
		t.Errorf("the audit is %+v; want bob's revocation by the owner first", audit.Lines)
	}
}
