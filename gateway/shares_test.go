package gateway

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	peopleapi "ahprelay/gateway/api/people"
)

// A relay writes an audit line for an expired link and for an expired invitation, once
// each.
func TestExpiredGrantsAreAudited(t *testing.T) {
	var file bytes.Buffer
	relay, err := StartRelay(t.Context(), RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: NoListener, Gateway: Config{AuditFile: &file}})
	if err != nil {
		t.Fatal(err)
	}
	directory, past := relay.server.Load().cfg.People, time.Now().Add(-time.Second)
	for _, id := range []string{"over", "good"} {
		share := people.Share{ID: id, Tenant: "default", By: "ada", Subject: "link-1", Host: "laptop", Session: "mock:/1", Access: auth.AccessRead, Expires: past}
		if id == "good" {
			share.Expires = time.Now().Add(time.Hour)
		}
		if _, err := directory.Keep(share); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := directory.Invite(people.Invite{Person: peopleapi.OwnerOf("default", "bob"), By: "device-1", Expires: past}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		relay.server.Load().people.ExpireGrants()
	}
	relay.Close()
	var lines []string
	for line := range strings.Lines(file.String()) {
		if strings.Contains(line, `"expire"`) {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], `"over"`) || !strings.Contains(lines[0], "mock:/1") || !strings.Contains(lines[1], `"bob"`) {
		t.Errorf("the audit has %q; want one line for the expired link and one for the expired invitation", lines)
	}
}

// An owner of a host shares its sessions, and revokes these links. A person with a
// lower level cannot share. An owner cannot revoke a different person's links.
func TestOwnerSharesAndRevokes(t *testing.T) {
	relay, ada := setUp(t)
	share := func(ask map[string]any) (id, token string) {
		var made struct{ ID, Link string }
		ada.do("POST", "/api/shares", ask, &made)
		got, said := follow(t, relay, made.Link)
		if got.Host != "laptop" || got.Session != "mock:/1" || len(made.Link) > len("https://relay.example.com/s#")+26 {
			t.Fatalf("the link %s leads to an answer %s; want the laptop's mock:/1", made.Link, said)
		}
		return made.ID, got.Token
	}
	id, token := share(map[string]any{"host": "laptop", "session": "mock:/1", "level": "talk", "people": 3})
	who, err := relay.Keys().Tokens().VerifyClient(token)
	if err != nil || who.Access != auth.AccessTalk || len(who.Channels) != 1 || who.Channels[0] != "mock:/1" || who.MaxConnections != 3 || who.ID != id || who.Device != ada.in.Device {
		t.Errorf("the link's token is %+v, %v; want level talk, session mock:/1, 3 connections, of the owner's device", who, err)
	}
	_, other := share(map[string]any{"host": "laptop", "session": "mock:/1"})
	if who, err := relay.Keys().Tokens().VerifyClient(other); err != nil || who.Access != auth.AccessRead || who.Audience != who.Subject {
		t.Errorf("the token of a link without a level is %+v, %v; want level look, with an audience", who, err)
	}
	opens := func(token string) bool {
		status, _ := ada.send("GET", "/api/hosts", token, "", nil, nil)
		return status == http.StatusOK
	}
	var list struct {
		Shares []struct{ ID, Level, Session, By string }
	}
	if ada.do("GET", "/api/shares", nil, &list); len(list.Shares) != 2 || !opens(token) || !opens(other) {
		t.Errorf("shares %+v, the links open the session: %v and %v; want two shares, and both links open", list.Shares, opens(token), opens(other))
	}

	for _, level := range []string{"look", "talk", "approve", "operate"} {
		guest := ada.invited(map[string]any{"subject": "guest-" + level, "level": level, "hosts": []string{"*"}})
		guest.refused(403, "host's owner", "POST", "/api/shares", map[string]any{"host": "laptop", "session": "mock:/1"})
	}
	bob := ada.invited(map[string]any{"subject": "bob", "level": "own", "hosts": []string{"laptop"}})
	for why, ask := range map[string]map[string]any{
		"not a host":                {"host": "other", "session": "mock:/1"},
		"one host":                  {"host": "*", "session": "mock:/1"},
		"one session":               {"host": "laptop", "session": "mock:/*"},
		"seconds":                   {"host": "laptop", "session": "mock:/1", "seconds": 1 << 30},
		"cannot give the level own": {"host": "laptop", "session": "mock:/1", "level": "own"},
	} {
		bob.refused(400, why, "POST", "/api/shares", ask)
	}
	bob.refused(404, "", "DELETE", "/api/shares/"+id, nil) // the link is ada's
	if bob.do("DELETE", "/api/shares", nil, nil); !opens(token) {
		t.Error("bob has revoked ada's links; want them valid")
	}
	ada.do("DELETE", "/api/shares/"+id, nil, nil)
	if opens(token) || !opens(other) {
		t.Errorf("after one of two links was revoked, they open the session: %v and %v; want false and true", opens(token), opens(other))
	}
	ada.do("DELETE", "/api/shares", nil, nil)
	if opens(other) {
		t.Error("a link opens the session after all were revoked; want a refusal")
	}
	if ada.do("GET", "/api/shares", nil, &list); len(list.Shares) != 0 {
		t.Errorf("shares left after all were revoked: %+v; want none", list.Shares)
	}
}
