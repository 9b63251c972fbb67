package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nkeys"

	"ahprelay/auth"
	"ahprelay/auth/people"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/notify"
	"ahprelay/hostagent"
)

// endsWithin bounds the time from a revocation until all derived grants have ended at
// all relays.
const endsWithin = 2 * time.Second

// asks sends a request as the holder of a grant, and decodes the response into answer.
// The test fails unless the response is 200.
type asks func(method, path string, body, answer any)

// bearer returns an asks with a token that is bound to no key.
func bearer(p *phone, token string) asks {
	return func(method, path string, body, answer any) {
		p.Helper()
		if status, said := p.send(method, path, token, "", body, answer); status != http.StatusOK {
			p.Fatalf("%s %s: HTTP %d %s; want 200", method, path, status, said)
		}
	}
}

// A family holds grants of each kind, derived from a root grant directly or through a
// derived grant.
type family struct {
	*testing.T
	one, two   *Relay
	tokens     map[string]string // bound to no key
	devices    map[string]*phone
	links      map[string]string // secrets of shared links
	invites    map[string]string // secrets of open invitations
	approved   url.Values        // the poll with which waiting, an approved device, can fetch its token
	waiting    *phone
	credential string // a host-agent's
	connection *websocket.Conn
	events     chan struct{}
}

// knowLaptop enrols the host laptop at one relay, and waits until the second knows it.
func knowLaptop(t *testing.T, one, two *Relay) {
	t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	nkey, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := one.registry.Admit(t.Context(), auth.Enrolment{ID: "laptop's", Tenant: "default", Host: "laptop", IssuedAt: time.Now()}, nkey, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { _, known := two.registry.Lookup("default", "laptop"); return known })
}

// newFamily derives each kind of grant from root, at the first relay. With a derived
// token, it opens a connection and an event stream at the second.
func newFamily(t *testing.T, one, two *Relay, name string, root asks) *family {
	knowLaptop(t, one, two)
	f := &family{T: t, one: one, two: two, tokens: map[string]string{}, devices: map[string]*phone{}, links: map[string]string{}, invites: map[string]string{}}
	someone := newPhone(t, one)
	f.tokens["token"] = f.token(root)
	f.tokens["token of the token"] = f.token(bearer(someone, f.tokens["token"]))
	f.links["link"] = f.link(root)
	f.links["link of the token"] = f.link(bearer(someone, f.tokens["token"]))
	for _, relay := range []*Relay{one, two} {
		var got followed
		await(t, func() bool { // until the relay knows the link
			got, _ = follow(t, relay, relay.URL()+"/s#"+f.links["link"])
			return got.Token != ""
		})
		f.tokens["token of the link at "+relay.URL()] = got.Token
	}
	mallory := newPhone(t, one)
	if status, said := mallory.setUp("#" + f.invite(root, name+"-mallory")); status != http.StatusOK {
		t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
	}
	f.devices["device"] = mallory
	f.tokens["token of the device"] = f.token(mallory.do)
	f.links["link of the device"] = f.link(mallory.do)
	f.invites["invitation"] = f.invite(root, name+"-carol")
	f.invites["invitation of the device"] = f.invite(mallory.do, name+"-dave")
	laptop, poll := f.approves(mallory)
	if status, said := laptop.ask("POST", "/auth/token", "", poll, &laptop.in); status != http.StatusOK {
		t.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
	}
	f.devices["device of the device"] = laptop
	f.waiting, f.approved = f.approves(laptop)
	f.credential = f.enrols(root, name+"-rogue")

	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(service.Close)
	bearer(someone, f.tokens["token"])("POST", "/api/notify/ways", map[string]any{"kind": "webhook", "url": service.URL}, nil)
	await(t, func() bool { return len(f.ways(two)) == 1 })
	f.opens()
	return f
}

func (f *family) token(from asks) string {
	f.Helper()
	var made struct{ Token string }
	from("POST", "/api/tokens", map[string]any{"level": "own", "seconds": 30 * 24 * 3600}, &made)
	return made.Token
}

func (f *family) link(from asks) string {
	f.Helper()
	var made struct{ Link string }
	from("POST", "/api/shares", map[string]any{"host": "laptop", "session": "mock:/1", "level": "operate", "seconds": 7 * 24 * 3600}, &made)
	_, secret, _ := strings.Cut(made.Link, "#")
	return secret
}

func (f *family) invite(from asks, subject string) string {
	f.Helper()
	var made struct{ Link string }
	from("POST", "/api/invites", map[string]any{"subject": subject, "level": "own", "hosts": []string{"*"}}, &made)
	_, secret, _ := strings.Cut(made.Link, "#")
	return secret
}

// approves has a device approve a new device. It returns the new device, and the poll
// with which the new device can fetch its token.
func (f *family) approves(by *phone) (asking *phone, poll url.Values) {
	f.Helper()
	asking = newPhone(f.T, f.one)
	var code peopleapi.DeviceCode
	if status, said := asking.ask("POST", "/auth/device", "", url.Values{"kind": {"device"}}, &code); status != http.StatusOK {
		f.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	_, id, _ := strings.Cut(code.Complete, "#")
	by.do("POST", "/api/requests/"+id, map[string]any{"approve": true, "code": code.UserCode}, nil)
	return asking, url.Values{"grant_type": {peopleapi.GrantDeviceCode}, "device_code": {code.DeviceCode}}
}

// enrols has the holder of a grant approve a host-agent, and returns the host-agent's
// credential.
func (f *family) enrols(by asks, host string) string {
	f.Helper()
	agent, key := newPhone(f.T, f.one), auth.NewHostKey()
	var code peopleapi.DeviceCode
	if status, said := agent.send("POST", "/auth/device", "", "", url.Values{"kind": {"host"}, "key": {key.PublicText()}}, &code); status != http.StatusOK {
		f.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	_, id, _ := strings.Cut(code.Complete, "#")
	by("POST", "/api/requests/"+id, map[string]any{"approve": true, "code": code.UserCode, "host": host}, nil)
	var got peopleapi.HostCredential
	poll := url.Values{"grant_type": {peopleapi.GrantDeviceCode}, "device_code": {code.DeviceCode}, "key": {key.PublicText()}}
	if status, said := agent.send("POST", "/auth/token", "", "", poll, &got); status != http.StatusOK {
		f.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
	}
	return got.Credential.Credential
}

// opens connects a client and an event stream to the second relay, with the token of a
// derived device. It closes f.events when the event stream ends.
func (f *family) opens() {
	f.Helper()
	token := f.tokens["token of the device"]
	conn, _, err := websocket.Dial(f.Context(), f.two.URL()+"/ahp/laptop", &websocket.DialOptions{Subprotocols: []string{"ahp", "bearer." + token}})
	if err != nil {
		f.Fatal(err)
	}
	f.connection = conn
	f.Cleanup(func() { _ = conn.CloseNow() })
	request, err := http.NewRequestWithContext(f.Context(), "GET", f.two.URL()+"/api/events", nil)
	if err != nil {
		f.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		f.Fatalf("opening the event stream: %v, %v; want HTTP 200", response, err)
	}
	f.events = make(chan struct{})
	go func() {
		defer close(f.events)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}()
	f.Cleanup(func() { <-f.events })
}

// ways returns the notification targets that the relay keeps for the holder of a
// derived token.
func (f *family) ways(relay *Relay) []notify.Target {
	who, err := relay.Keys().Tokens().VerifyClient(f.tokens["token"])
	if err != nil {
		f.Fatal(err)
	}
	return relay.teller.Person(who.Tenant, who.Subject).Targets
}

// good tries all grants at a relay, and returns the names of those that work.
func (f *family) good(relay *Relay) (names []string) {
	f.Helper()
	someone := newPhone(f.T, relay)
	for name, token := range f.tokens {
		if status, _ := someone.send("GET", "/api/hosts", token, "", nil, nil); status != http.StatusUnauthorized {
			names = append(names, name)
		}
	}
	for name, device := range f.devices {
		there := device.at(relay)
		if status, _ := there.renew(); status == http.StatusOK {
			names = append(names, name+" renews")
		}
		if status, _ := there.ask("GET", "/api/me", there.in.Token, nil, nil); status != http.StatusUnauthorized {
			names = append(names, name)
		}
	}
	for name, secret := range f.links {
		if got, _ := follow(f.T, relay, relay.URL()+"/s#"+secret); got.Token != "" {
			names = append(names, name)
		}
	}
	if _, err := relay.server.Load().caller.VerifyHost(f.credential); err == nil {
		names = append(names, "credential of a host-agent")
	}
	for _, way := range f.ways(relay) {
		if _, good, _ := relay.server.Load().people.Standing(way.Who); good {
			names = append(names, "notification target")
		}
	}
	slices.Sort(names)
	return names
}

// wantEnded waits up to endsWithin until no grant works at either relay, and otherwise
// fails with their names. It also fails unless open invitations and the approved device
// are refused, and the connection and the event stream end.
func (f *family) wantEnded() {
	f.Helper()
	began := time.Now()
	left := func() (left []string) {
		for _, relay := range []*Relay{f.one, f.two} {
			left = append(left, f.good(relay)...)
		}
		return left
	}
	for len(left()) > 0 && time.Since(began) < endsWithin {
		time.Sleep(10 * time.Millisecond)
	}
	if names := left(); len(names) > 0 {
		f.Errorf("%v after the revocation, these derived grants are still good: %s; want none", endsWithin, strings.Join(names, ", "))
	}
	for name, secret := range f.invites {
		if status, said := newPhone(f.T, f.two).setUp("#" + secret); status != http.StatusBadRequest {
			f.Errorf("the revoked grant's %s: HTTP %d %.200s; want 400", name, status, said)
		}
	}
	if status, said := f.waiting.ask("POST", "/auth/token", "", f.approved, nil); status != http.StatusBadRequest || !strings.Contains(said, "access_denied") {
		f.Errorf("a device approved before the revocation polls: HTTP %d %.200s; want 400, access_denied", status, said)
	}
	timer := time.NewTimer(endsWithin)
	defer timer.Stop()
	closed := make(chan error, 1)
	go func() {
		_, _, err := f.connection.Read(f.Context())
		closed <- err
	}()
	select {
	case err := <-closed:
		if websocket.CloseStatus(err) != 4501 {
			f.Errorf("a connection with a derived grant ends with %v; want close code 4501", err)
		}
	case <-timer.C:
		f.Error("a connection with a derived grant is still open; want it closed")
		_ = f.connection.CloseNow()
		<-closed
	}
	select {
	case <-f.events:
	case <-time.After(endsWithin):
		f.Error("an event stream with a derived grant is still open; want it ended")
	}
}

// TestRevokedGrantEndsWhatIsDerivedFromIt: a thief holds a grant, and derives grants of
// each kind from it at one relay. The thief's token, subject, device or person is
// revoked at the second relay. All derived grants end at both relays, and unrelated
// grants still work.
func TestRevokedGrantEndsWhatIsDerivedFromIt(t *testing.T) {
	one, two := pair(t)
	link, err := one.SetupLink("")
	if err != nil {
		t.Fatal(err)
	}
	ada := newPhone(t, one)
	if status, said := ada.setUp(link); status != http.StatusOK {
		t.Fatalf("using the setup link: HTTP %d %s; want 200", status, said)
	}
	operator, err := one.Keys().Tokens().IssueOperator("test")
	if err != nil {
		t.Fatal(err)
	}
	own := func(id, subject string) string {
		token, err := one.Keys().Tokens().IssueClient(auth.Client{
			ID: id, Tenant: "default", Subject: subject, Hosts: []string{auth.AllHosts}, Access: auth.AccessAdmin, Expires: time.Now().Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	revoke := func(body map[string]any) {
		t.Helper()
		bearer(newPhone(t, two), operator)("POST", "/operator/revocations", body, nil)
	}
	stays := own("stays", "ada")
	var kept struct{ Token string }
	ada.do("POST", "/api/tokens", map[string]any{"level": "own"}, &kept)

	families := map[string]func(t *testing.T) (root asks, end func()){
		"token": func(t *testing.T) (asks, func()) {
			return bearer(newPhone(t, one), own("stolen", "ada")), func() { revoke(map[string]any{"token": "stolen"}) }
		},
		"subject": func(t *testing.T) (asks, func()) {
			return bearer(newPhone(t, one), own("stolen-too", "ann")), func() { revoke(map[string]any{"tenant": "default", "subject": "ann"}) }
		},
		"device": func(t *testing.T) (asks, func()) {
			f := family{T: t, one: one, two: two}
			stolen, poll := f.approves(ada)
			if status, said := stolen.ask("POST", "/auth/token", "", poll, &stolen.in); status != http.StatusOK {
				t.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
			}
			return stolen.do, func() { ada.at(two).do("DELETE", "/api/devices/"+stolen.in.Device, nil, nil) }
		},
		"person": func(t *testing.T) (asks, func()) {
			f := family{T: t, one: one, two: two}
			bob := newPhone(t, one)
			if status, said := bob.setUp("#" + f.invite(ada.do, "bob")); status != http.StatusOK {
				t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
			}
			return bob.do, func() { ada.at(two).do("DELETE", "/api/people/bob", nil, nil) }
		},
	}
	for name, begin := range families {
		t.Run(name, func(t *testing.T) {
			root, end := begin(t)
			f := newFamily(t, one, two, name, root)
			want := len(f.tokens) + 2*len(f.devices) + len(f.links) + 2
			await(t, func() bool { return len(f.good(two)) == want }) // until the second relay has received all grants
			end()
			f.wantEnded()

			var devices struct{ Devices []people.Device }
			var invites struct{ Invites []struct{ ID string } }
			var persons struct{ People []peopleapi.ShownPerson }
			ada.do("GET", "/api/devices", nil, &devices)
			ada.do("GET", "/api/people", nil, &persons)
			if len(devices.Devices) != 1 || len(invites.Invites) != 0 || len(persons.People) != 1 {
				t.Errorf("listed are devices %+v, invitations %+v, people %+v; want the owner alone", devices.Devices, invites.Invites, persons.People)
			}
			for _, relay := range []*Relay{one, two} {
				for _, token := range []string{stays, kept.Token} {
					if status, said := ada.at(relay).send("GET", "/api/hosts", token, "", nil, nil); status != http.StatusOK {
						t.Errorf("a grant with a different origin: HTTP %d %s; want 200", status, said)
					}
				}
				there := ada.at(relay)
				if status, said := there.renew(); status != http.StatusOK {
					t.Errorf("the owner's device renews: HTTP %d %s; want 200", status, said)
				}
			}
		})
	}
}

// The owner invites a person again. The relay refuses an invitation with different rights
// until the person is removed; without the person's devices, the person still exists. The removal
// also ends the person's unused invitations.
func TestInvitationChangesNobody(t *testing.T) {
	relay, ada := setUp(t)
	invites := func(level string) (link string) {
		var made struct{ Link string }
		ada.do("POST", "/api/invites", map[string]any{"subject": "bob", "level": level, "hosts": []string{"laptop"}}, &made)
		return made.Link
	}
	bob := newPhone(t, relay)
	if status, said := bob.setUp(invites("talk")); status != http.StatusOK {
		t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
	}
	other := map[string]any{"subject": "bob", "level": "own", "hosts": []string{"laptop"}}
	ada.refused(409, "remove that person first", "POST", "/api/invites", other)
	ada.do("DELETE", "/api/devices/"+bob.in.Device, nil, nil)
	ada.refused(409, "remove that person first", "POST", "/api/invites", other)
	again := invites("talk") // for another device of bob's
	ada.do("DELETE", "/api/people/bob", nil, nil)
	invites("own")
	if status, said := newPhone(t, relay).setUp(again); status != http.StatusBadRequest || !strings.Contains(said, "used up") {
		t.Errorf("an invitation from before its person's removal: HTTP %d %.100s; want 400, used up", status, said)
	}
}

// The owner and the operator list open invitations, and withdraw them, at any relay. A
// withdrawn invitation is refused at both relays. A person who owns nothing sees no
// invitation.
func TestOpenInvitationIsWithdrawn(t *testing.T) {
	one, two := pair(t)
	link, err := one.SetupLink("")
	if err != nil {
		t.Fatal(err)
	}
	ada := newPhone(t, one)
	if status, said := ada.setUp(link); status != http.StatusOK {
		t.Fatalf("using the setup link: HTTP %d %s; want 200", status, said)
	}
	operator, err := two.Keys().Tokens().IssueOperator("test")
	if err != nil {
		t.Fatal(err)
	}
	operates := bearer(newPhone(t, two), operator)
	type invites struct{ Invites []peopleapi.ShownInvite }
	listed := func(from asks, path string) (list invites) {
		t.Helper()
		from("GET", path, nil, &list)
		return list
	}
	f := family{T: t, one: one, two: two}
	bob := newPhone(t, one)
	if status, said := bob.setUp("#" + f.invite(ada.do, "bob")); status != http.StatusOK {
		t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
	}
	var talks struct{ Link string }
	ada.do("POST", "/api/invites", map[string]any{"subject": "carol", "level": "talk", "hosts": []string{"laptop"}}, &talks)
	carol := newPhone(t, one)
	if status, said := carol.setUp(talks.Link); status != http.StatusOK {
		t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
	}
	secrets := map[string]string{"by-ada": f.invite(ada.do, "by-ada"), "by-bob": f.invite(bob.do, "by-bob")}
	var made struct{ Link string }
	operates("POST", "/operator/invites", map[string]any{"tenant": "default", "subject": "by-operator"}, &made)
	_, secrets["by-operator"], _ = strings.Cut(made.Link, "#")
	await(t, func() bool { return len(listed(ada.at(two).do, "/api/invites").Invites) == 3 })

	if list := listed(carol.do, "/api/invites"); len(list.Invites) != 0 {
		t.Errorf("a person who is no owner is shown the invitations %+v; want none", list)
	}
	by := map[string]string{"by-ada": "owner", "by-bob": "bob", "by-operator": ""}
	for _, i := range listed(operates, "/operator/invites/default").Invites {
		if want, ok := by[i.Subject]; !ok || i.By != want || i.Level != "own" || len(i.Hosts) != 1 || time.Until(i.Expires) < 23*time.Hour {
			t.Errorf("the list contains the invitation %+v; want the open ones with their giver, level and host", i)
		}
		carol.refused(404, "", "DELETE", "/api/invites/"+i.ID, nil)
		if i.Subject == "by-ada" {
			operates("DELETE", "/operator/invites/default/"+i.ID, nil, nil)
		} else {
			ada.at(two).do("DELETE", "/api/invites/"+i.ID, nil, nil)
		}
		ada.at(two).refused(404, "", "DELETE", "/api/invites/"+i.ID, nil)
		for _, relay := range []*Relay{one, two} {
			if status, said := newPhone(t, relay).setUp("#" + secrets[i.Subject]); status != http.StatusBadRequest || !strings.Contains(said, "used up") {
				t.Errorf("the withdrawn invitation of %s: HTTP %d %.100s; want 400, used up", i.Subject, status, said)
			}
		}
		delete(by, i.Subject)
	}
	if len(by) > 0 {
		t.Errorf("the list lacks the invitations %v; want all", by)
	}
}

// A device is removed with derived=keep, or signs out: its tokens end, and devices that
// it admitted stay. Without derived=keep, the relay refuses to remove the device or
// person that admitted the caller.
func TestRetiredDeviceKeepsWhatItLetIn(t *testing.T) {
	relay, old := setUp(t)
	f := family{T: t, one: relay, two: relay}
	comesIn := func(by *phone) *phone {
		t.Helper()
		device, poll := f.approves(by)
		if status, said := device.ask("POST", "/auth/token", "", poll, &device.in); status != http.StatusOK {
			t.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
		}
		return device
	}
	renews := func(p *phone, want bool) {
		t.Helper()
		if status, said := p.renew(); (status == http.StatusOK) != want {
			t.Errorf("a device renews: %d %s; want success: %v", status, said, want)
		}
	}
	phone := comesIn(old)
	token := f.token(old.do)
	phone.refused(409, "derived=keep", "DELETE", "/api/devices/"+old.in.Device, nil)
	phone.refused(400, "want keep", "DELETE", "/api/devices/"+old.in.Device+"?derived=all", nil)
	renews(old, true)
	phone.do("DELETE", "/api/devices/"+old.in.Device+"?derived=keep", nil, nil)
	renews(old, false)
	renews(phone, true)
	if status, _ := phone.send("GET", "/api/hosts", token, "", nil, nil); status != http.StatusUnauthorized {
		t.Errorf("a token of a removed device: HTTP %d; want 401", status)
	}

	tablet := comesIn(phone)
	bob := newPhone(t, relay)
	if status, said := bob.setUp("#" + f.invite(tablet.do, "bob")); status != http.StatusOK {
		t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
	}
	phone.do("DELETE", "/api/devices/"+phone.in.Device, nil, nil)
	renews(phone, false)
	renews(tablet, true)
	bob.refused(409, "derived=keep", "DELETE", "/api/people/owner", nil)
	relay.server.Load().people.ExpireGrants()
	renews(bob, true)
	bob.do("DELETE", "/api/people/owner?derived=keep", nil, nil)
	renews(tablet, false)
	renews(bob, true)
	relay.server.Load().people.ExpireGrants()
	renews(bob, true)
}

// Devices never expire, but a relay eventually forgets revocations. Before that, it
// removes grants derived from a revoked grant from the store.
func TestDerivedDevicesLeaveTheStore(t *testing.T) {
	relay, ada := setUp(t)
	stolen, err := relay.Keys().Tokens().IssueClient(auth.Client{
		ID: "stolen", Tenant: "default", Subject: "ann", Hosts: []string{auth.AllHosts}, Access: auth.AccessAdmin, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	f := newFamily(t, relay, relay, "x", bearer(newPhone(t, relay), stolen))
	// The thief's invitation admits a device of Carol's, and the owner's invitation
	// admits another. Only the latter stays.
	carol := newPhone(t, relay)
	if status, said := carol.setUp("#" + f.invites["invitation"]); status != http.StatusOK {
		t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
	}
	again := newPhone(t, relay)
	if status, said := again.setUp("#" + f.invite(ada.do, carol.in.Subject)); status != http.StatusOK {
		t.Fatalf("using the invitation: HTTP %d %s; want 200", status, said)
	}
	revoked := relay.registry.Revocations()
	if err := revoked.Add(auth.Revocation{Token: "stolen", At: time.Now().UTC(), Until: time.Now().Add(time.Hour)}.Spanning()); err != nil {
		t.Fatal(err)
	}
	relay.server.Load().people.ExpireGrants()
	directory := relay.server.Load().cfg.People
	directory.Removed, directory.Revoked = func(people.Device) bool { return false }, func(string, []auth.Origin) bool { return false } // as if the relay had forgotten the revocation
	devices, err1 := directory.Devices("default", "")
	persons, err2 := directory.People("default")
	shares, err3 := directory.Shares("default", "")
	invites, err4 := directory.Invites("default")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if len(devices) != 2 || len(persons) != 2 || len(shares) != 0 || len(invites) != 0 {
		t.Errorf("the store has devices %+v, people %+v, links %+v, invitations %+v; want those of the owner and of %s", devices, persons, shares, invites, carol.in.Subject)
	}
	if status, said := again.renew(); status != http.StatusOK {
		t.Errorf("a device that the owner let in renews: HTTP %d %s; want 200", status, said)
	}
	if status, _ := carol.renew(); status == http.StatusOK {
		t.Error("a device that the thief let in renews; want a refusal")
	}
}

// A link made by a host-agent outlives the renewal of the host-agent's credential. The
// link ends when the host, the first credential or the enrolment token is revoked,
// although the latter two are already used up.
func TestLinkEndsWithTheHostsEnrolment(t *testing.T) {
	for name, revocation := range map[string]func(enrolment, credential auth.Enrolment) auth.Revocation{
		"host":            func(e, _ auth.Enrolment) auth.Revocation { return auth.Revocation{Tenant: e.Tenant, Host: e.Host} },
		"credential":      func(_, c auth.Enrolment) auth.Revocation { return auth.Revocation{Token: c.ID} },
		"enrolment token": func(e, _ auth.Enrolment) auth.Revocation { return auth.Revocation{Token: e.ID} },
	} {
		t.Run(name, func(t *testing.T) {
			relay := startRelay(t, nil)
			a, key := newFakeAgent(t, relay), auth.NewHostKey()
			verified := func() auth.Enrolment {
				t.Helper()
				host, err := relay.Keys().Tokens().VerifyAgent(a.token)
				if err != nil {
					t.Fatal(err)
				}
				return host
			}
			good := func(link string) bool {
				got, _ := follow(t, relay, link)
				status, _ := newPhone(t, relay).send("GET", "/api/hosts", got.Token, "", nil, nil)
				return got.Token != "" && status == http.StatusOK
			}
			enrolment := verified()
			a.token = a.wantCredential("/agent/enroll", a.enrollProof(key))
			credential := verified()
			link, err := sharingWith(t, relay, a.token, key).Share(t.Context(), hostagent.ShareAsk{Session: "mock:/1", TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			a.token = a.wantCredential("/agent/renew", a.keyProof(key, auth.ToRenew, ""))
			if status, said := a.post("/agent/credentials", a.token, encode(t, a.connectProof(key))); status != http.StatusOK {
				t.Fatalf("connecting with the renewed credential: HTTP %d %s; want 200", status, said)
			}
			if revoked := relay.registry.Revocations(); !revoked.Revoked(time.Now(), auth.RevocationKey{Token: credential.ID}) || !good(link.Link) {
				t.Fatalf("after the renewal, the old credential must be revoked, and the link good; the link is good: %v", good(link.Link))
			}
			rev := revocation(enrolment, credential)
			rev.At = time.Now().UTC()
			if err := relay.registry.Revocations().Add(rev); err != nil {
				t.Fatal(err)
			}
			if good(link.Link) {
				t.Error("after the enrolment's end, the link is good; want it ended")
			}
			_, err = relay.server.Load().caller.VerifyHost(a.token)
			if !errors.Is(err, auth.ErrTokenRevoked) {
				t.Errorf("VerifyHost of the renewed credential = %v; want ErrTokenRevoked", err)
			}
		})
	}
}
