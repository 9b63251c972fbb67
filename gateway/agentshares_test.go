package gateway

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/hostagent"
)

// followed is the relay's answer to a browser that opens a shared link.
type followed struct{ Token, Host, Session, Level string }

// follow opens a shared link as the page /s does, and returns the relay's answer,
// decoded and as text.
func follow(t *testing.T, relay *Relay, link string) (got followed, said string) {
	t.Helper()
	at, secret, ok := strings.Cut(link, "/s#")
	if !ok || at != relay.URL() {
		t.Fatalf("link %s; want one to %s/s", link, relay.URL())
	}
	p := phone{T: t, relay: relay}
	_, said = p.send("POST", "/auth/share", "", "", map[string]string{"link": secret}, &got)
	return got, said
}

// sharingWith returns a host-agent's Sharing at the relay, with a credential and its
// key.
func sharingWith(t *testing.T, relay *Relay, credential string, key *auth.HostKey) *hostagent.Sharing {
	t.Helper()
	file := filepath.Join(t.TempDir(), "credential")
	text, err := json.Marshal(map[string]any{"credential": credential, "key": key.Seed()})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	s := &hostagent.Sharing{Relays: []string{relay.URL()}}
	if err == nil {
		s.Credentials, err = hostagent.OpenCredentialFile(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Token = s.Credentials.Token
	return s
}

// With its credential, a host-agent shares only sessions of its own host, lists all
// links to them, and revokes each. A copy of the credential without its key is useless.
func TestHostAgentSharesOnlyItsHost(t *testing.T) {
	relay, ada := setUp(t)
	key := auth.NewHostKey()
	credential, err := relay.Keys().Tokens().IssueCredential(auth.Enrolment{Tenant: "default", Host: "laptop", Key: key.Public(), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	sharing := func(key *auth.HostKey) *hostagent.Sharing { return sharingWith(t, relay, credential, key) }
	laptop := sharing(key)
	link, err := laptop.Share(t.Context(), hostagent.ShareAsk{Session: "mock:/1", Level: auth.AccessTalk, TTL: time.Hour, People: 3, Files: true})
	if err != nil {
		t.Fatal(err)
	}
	got, said := follow(t, relay, link.Link)
	who, err := relay.Keys().Tokens().VerifyClient(got.Token)
	if err != nil || who.Access != auth.AccessTalk || len(who.Hosts) != 1 || who.Hosts[0] != "laptop" || who.Channels[0] != "mock:/1" || !who.Files || who.MaxConnections != 3 || who.Audience != "" {
		t.Errorf("the link's token, answer %s: %+v, %v; want level talk, host laptop, session mock:/1, files, 3 connections", said, who, err)
	}
	if again, _ := follow(t, relay, link.Link); again.Token == "" {
		t.Error("a second visit of the link gets no token; want one for each visit")
	}
	for _, bad := range []string{"/s#", "/s#" + strings.Repeat("A", 26), "/s#" + link.ID} {
		if _, said := follow(t, relay, relay.URL()+bad); !strings.Contains(said, peopleapi.ErrLinkOver.Error()) {
			t.Errorf("following the invalid link %s: %s; want ErrLinkOver", bad, said)
		}
	}
	for why, ask := range map[string]hostagent.ShareAsk{
		"cannot give the level own": {Session: "mock:/1", Level: auth.AccessAdmin},
		"one session":               {Session: "mock:/*"},
		"seconds":                   {Session: "mock:/1", TTL: 1000 * time.Hour},
	} {
		if _, err := laptop.Share(t.Context(), ask); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v: %v; want %q", ask, err, why)
		}
	}
	if _, err := sharing(auth.NewHostKey()).Share(t.Context(), hostagent.ShareAsk{Session: "mock:/1"}); err == nil || !strings.Contains(err.Error(), "signature") {
		t.Errorf("Share with a different host key: %v; want an error about the signature", err)
	}

	var made struct{ ID string }
	ada.do("POST", "/api/shares", map[string]any{"host": "laptop", "session": "mock:/2"}, &made)
	ada.do("POST", "/api/shares", map[string]any{"host": "other", "session": "mock:/2"}, nil)
	list, err := laptop.List(t.Context())
	if err != nil || len(list) != 2 || list[0].By != "owner" || list[1].By != "host-agent of laptop" || list[1].Level != "talk" {
		t.Errorf("share links to the host: %+v, %v; want the owner's, and then the host-agent's with level talk", list, err)
	}
	if n, err := laptop.TakeBack(t.Context(), link.ID); n != 1 || err != nil {
		t.Errorf("TakeBack = %d, %v; want 1 link", n, err)
	}
	if status, _ := ada.send("GET", "/api/hosts", got.Token, "", nil, nil); status != http.StatusUnauthorized {
		t.Errorf("the token of a revoked link: HTTP %d; want 401", status)
	}
	if _, said := follow(t, relay, link.Link); !strings.Contains(said, peopleapi.ErrLinkOver.Error()) {
		t.Errorf("following a revoked link: %s; want ErrLinkOver", said)
	}
	if _, err := laptop.TakeBack(t.Context(), "other"); err == nil {
		t.Error("TakeBack of an unknown link succeeds; want an error")
	}
	if n, err := laptop.TakeBack(t.Context(), ""); n != 1 || err != nil {
		t.Errorf("TakeBack of all links = %d, %v; want 1", n, err)
	}
	var shares struct{ Shares []peopleapi.ShownShare }
	if ada.do("GET", "/api/shares", nil, &shares); len(shares.Shares) != 1 || shares.Shares[0].Host != "other" || shares.Shares[0].Secret != "" {
		t.Errorf("links left: %+v; want one, without its secret, for the host other", shares.Shares)
	}
}
