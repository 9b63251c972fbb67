package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/auth"
	"ahprelay/auth/people"
	notifyapi "ahprelay/gateway/api/notify"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/test/memstore"
)

// A phone is a device with a key, in use at a relay. Its access is in the field in.
type phone struct {
	*testing.T
	relay *Relay
	key   *auth.DeviceKey
	nonce string
	in    peopleapi.Access
	proxy string // name of a proxy with TLS in front of the relay; "": none
}

func newPhone(t *testing.T, relay *Relay) *phone {
	key, err := auth.NewDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	return &phone{T: t, relay: relay, key: key}
}

// proof returns a proof for a request to the relay, with the relay's latest nonce.
func (p *phone) proof(method, path, token string) string {
	p.Helper()
	path, _, _ = strings.Cut(path, "?")
	at := p.relay.URL()
	if p.proxy != "" {
		at = "https://" + p.proxy
	}
	proof, err := p.key.Prove(auth.Asked{Method: method, URLs: []string{at + path}, Token: token}, p.nonce)
	if err != nil {
		p.Fatal(err)
	}
	return proof
}

// ask sends a request with a proof. If the relay requires a new nonce, ask repeats the
// request with it. It returns the HTTP status and the body, and decodes the body of a
// 200 into answer.
func (p *phone) ask(method, path, token string, body any, answer any) (status int, said string) {
	p.Helper()
	for range 2 {
		status, said = p.send(method, path, token, p.proof(method, path, token), body, answer)
		if status != http.StatusUnauthorized || !strings.Contains(said, "nonce") {
			break
		}
	}
	return status, said
}

func (p *phone) send(method, path, token, proof string, body any, answer any) (status int, said string) {
	p.Helper()
	var content io.Reader
	form, isForm := body.(url.Values)
	switch {
	case isForm:
		content = strings.NewReader(form.Encode())
	case body != nil:
		content = strings.NewReader(string(encode(p.T, body)))
	}
	request, err := http.NewRequestWithContext(p.Context(), method, p.relay.URL()+path, content)
	if err != nil {
		p.Fatal(err)
	}
	if isForm {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if p.proxy != "" {
		request.Host = p.proxy
		request.Header.Set("X-Forwarded-Proto", "https")
	}
	if proof != "" {
		request.Header.Set("DPoP", proof)
	}
	if token != "" {
		request.Header.Set("Authorization", "DPoP "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		p.Fatal(err)
	}
	if nonce := response.Header.Get("DPoP-Nonce"); nonce != "" {
		p.nonce = nonce
	}
	if answer != nil && response.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, answer); err != nil {
			p.Fatalf("%s %s answers %s, not JSON of the wanted type: %v", method, path, text, err)
		}
	}
	return response.StatusCode, string(text)
}

// do sends a request with the device's token, and fails unless the relay answers with
// 200.
func (p *phone) do(method, path string, body, answer any) {
	p.Helper()
	if status, said := p.ask(method, path, p.in.Token, body, answer); status != http.StatusOK {
		p.Fatalf("%s %s: HTTP %d %s; want 200", method, path, status, said)
	}
}

// refused sends a request with the device's token, and fails unless the relay answers
// with the status want and a text that contains why.
func (p *phone) refused(want int, why, method, path string, body any) {
	p.Helper()
	if status, said := p.ask(method, path, p.in.Token, body, nil); status != want || !strings.Contains(said, why) {
		p.Errorf("%s %s: %d %s; want %d, %q", method, path, status, said, want, why)
	}
}

// hears opens the device's event stream, and returns a channel that is closed when the
// stream ends.
func (p *phone) hears() (ended chan struct{}) {
	p.Helper()
	request, err := http.NewRequestWithContext(p.Context(), "GET", p.relay.URL()+"/api/events", nil)
	if err != nil {
		p.Fatal(err)
	}
	request.Header.Set("DPoP", p.proof("GET", "/api/events", p.in.Token))
	request.Header.Set("Authorization", "DPoP "+p.in.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		p.Fatalf("opening the event stream: %v, %v; want HTTP 200", response, err)
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}()
	p.Cleanup(func() { <-ended })
	return ended
}

// denied sends a request without a token, and fails unless the relay answers with the
// status want and a text that contains why.
func (p *phone) denied(want int, why, method, path string, body any) {
	p.Helper()
	if status, said := p.ask(method, path, "", body, nil); status != want || !strings.Contains(said, why) {
		p.Errorf("%s %s: %d %s; want %d, %q", method, path, status, said, want, why)
	}
}

// renew requests a new token for the device.
func (p *phone) renew() (status int, said string) {
	p.Helper()
	return p.ask("POST", "/auth/token", "", url.Values{"grant_type": {peopleapi.GrantDevice}, "device": {p.in.Device}}, &p.in)
}

// setUp starts a relay, and admits a phone as the owner's device.
func setUp(t *testing.T) (*Relay, *phone) { return setUpWith(t, nil) }

// setUpWith is setUp with a change of the relay's configuration.
func setUpWith(t *testing.T, change func(*RelayConfig)) (*Relay, *phone) {
	cfg := RelayConfig{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: NoListener,
		Notify: NotifyConfig{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}
	if change != nil {
		change(&cfg)
	}
	relay, err := StartRelay(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	link, err := relay.SetupLink("")
	if err != nil || link == "" {
		t.Fatalf("SetupLink = %q, %v; want a link", link, err)
	}
	p := newPhone(t, relay)
	_, secret, _ := strings.Cut(link, "#")
	if status, said := p.ask("POST", "/auth/setup", "", map[string]string{"invite": secret, "name": "Ada's phone"}, &p.in); status != http.StatusOK {
		t.Fatalf("using the setup link: HTTP %d %s; want 200", status, said)
	}
	late := newPhone(t, relay)
	late.refused(400, "used up", "POST", "/auth/setup", map[string]string{"invite": secret, "name": "late"})
	if link, err := relay.SetupLink(""); err != nil || link != "" {
		t.Errorf("SetupLink of a relay with an owner = %q, %v; want no link", link, err)
	}
	return relay, p
}

// The owner's device signs in at the relay's https address. The relay must learn that
// address for links in notifications, and report it to pages. It must not learn an
// address without TLS, or the address of a different person's device.
func TestRelayLearnsItsAddressFromTheOwnersDevice(t *testing.T) {
	relay, ada := setUp(t)
	address := func() string {
		var n notifyapi.Notifying
		ada.do("GET", "/api/notify", nil, &n)
		return n.URL
	}
	renews := func(p *phone) {
		if status, said := p.renew(); status != http.StatusOK {
			t.Fatalf("requesting a new token for the device: HTTP %d %s; want 200", status, said)
		}
	}
	var made struct{ Link string }
	ada.do("POST", "/api/invites", map[string]any{"subject": "bob", "level": "talk", "hosts": []string{"laptop"}}, &made)
	_, secret, _ := strings.Cut(made.Link, "#")
	bob := newPhone(t, relay)
	bob.proxy = "of-bob.example.com"
	if status, said := bob.ask("POST", "/auth/setup", "", map[string]string{"invite": secret, "name": "Bob's phone"}, &bob.in); status != http.StatusOK {
		t.Fatalf("using the setup link: HTTP %d %s; want 200", status, said)
	}
	renews(bob)
	if got := address(); got != "" {
		t.Errorf("the relay has learned the address %s from bob's device; want none", got)
	}
	ada.proxy = "relay.example.com"
	renews(ada)
	for end := time.Now().Add(time.Minute); address() != "https://relay.example.com"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the relay's address is %q; want https://relay.example.com", address())
		}
	}
}

// The setup link admits a device. This device approves a second by its code, and
// removes it: the second device's token, event stream and renewal end.
func TestDevicesApproveAndRemoveEachOther(t *testing.T) {
	relay, ada := setUp(t)
	if ada.in.Level != "own" || ada.in.Seconds != 900 || ada.in.Type != "DPoP" {
		t.Errorf("the owner's device got %+v; want level own, 900 s, type DPoP", ada.in)
	}
	laptop := newPhone(t, relay)
	poll := url.Values{"grant_type": {peopleapi.GrantDeviceCode}}
	var code peopleapi.DeviceCode
	if status, said := laptop.ask("POST", "/auth/device", "", url.Values{"kind": {"device"}, "name": {"Ada's laptop\x1b[31m"}}, &code); status != http.StatusOK {
		t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	poll.Set("device_code", code.DeviceCode)
	if strings.Contains(code.Complete, strings.ReplaceAll(code.UserCode, "-", "")) || strings.Contains(code.Complete, code.UserCode) {
		t.Errorf("the link %s contains the code %s; want a link without the code, so that an onlooker of the link cannot approve", code.Complete, code.UserCode)
	}

	var waiting peopleapi.Waiting
	ada.do("GET", "/api/requests/"+strings.ToLower(code.UserCode), nil, &waiting)
	if waiting.Name != "Ada's laptop[31m" || waiting.Fingerprint != code.Key || waiting.Address != "127.0.0.1" {
		t.Errorf("the approving person is shown %+v; want the name, address and fingerprint of the device %+v", waiting, code)
	}
	at := "/api/requests/" + waiting.ID
	ada.refused(403, people.ErrWrong.Error(), "POST", at, map[string]any{"approve": true})
	ada.refused(403, people.ErrWrong.Error(), "POST", at, map[string]any{"approve": true, "code": "BBBB"})
	ada.do("POST", at, map[string]any{"approve": true, "code": code.UserCode[5:]}, nil)
	thief := newPhone(t, relay)
	thief.refused(400, "invalid_grant", "POST", "/auth/token", poll) // the thief has the device code, but not the key
	if status, said := laptop.ask("POST", "/auth/token", "", poll, &laptop.in); status != http.StatusOK {
		t.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
	}
	if laptop.in.Subject != ada.in.Subject || laptop.in.Device == ada.in.Device {
		t.Errorf("the laptop got %+v; want ada's subject, and a device of its own", laptop.in)
	}

	var list struct{ Devices []people.Device }
	ada.do("GET", "/api/devices", nil, &list)
	if len(list.Devices) != 2 || list.Devices[0].ID != laptop.in.Device || list.Devices[0].Seen.IsZero() || list.Devices[0].Place == "" {
		t.Errorf("ada sees the devices %+v; want two, the laptop first with its time and place", list.Devices)
	}
	var made struct{ Token string }
	laptop.do("POST", "/api/tokens", map[string]any{"seconds": 3600, "level": "look"}, &made)
	if status, said := ada.send("GET", "/api/hosts", made.Token, "", nil, nil); status != http.StatusOK {
		t.Errorf("a token for a client without DPoP: HTTP %d %s; want 200", status, said)
	}
	hearing := laptop.hears()
	ada.do("DELETE", "/api/devices/"+laptop.in.Device, nil, nil)
	select {
	case <-hearing:
	case <-time.After(notifyapi.StreamBeat / 2): // later, the stream would notice by itself
		t.Error("the event stream of a removed device is open; want it ended")
	}
	if status, said := laptop.ask("GET", "/api/hosts", laptop.in.Token, nil, nil); status != http.StatusUnauthorized || !strings.Contains(said, "revoked") {
		t.Errorf("a request from a removed device: HTTP %d %s; want 401, revoked", status, said)
	}
	if status, said := ada.send("GET", "/api/hosts", made.Token, "", nil, nil); status != http.StatusUnauthorized || !strings.Contains(said, "revoked") {
		t.Errorf("a token made by a removed device: HTTP %d %s; want 401, revoked", status, said)
	}
	if status, said := laptop.renew(); status != http.StatusBadRequest || !strings.Contains(said, "removed") {
		t.Errorf("a removed device renews: HTTP %d %s; want 400, removed", status, said)
	}
}

// The relay refuses a device's token with an invalid proof, and with a proof made for a
// different request, token or key.
func TestInvalidProofsAreRefused(t *testing.T) {
	relay, ada := setUp(t)
	if status, said := ada.renew(); status != http.StatusOK {
		t.Fatalf("requesting a new token for the device: HTTP %d %s; want 200", status, said)
	}
	token, mallory := ada.in.Token, newPhone(t, relay)
	mallory.nonce = ada.nonce
	replayed := ada.proof("GET", "/api/hosts", token)
	if status, said := ada.send("GET", "/api/hosts", token, replayed, nil, nil); status != http.StatusOK {
		t.Fatalf("a request with a good proof: HTTP %d %s; want 200", status, said)
	}
	stale := func() string {
		defer func(nonce string) { ada.nonce = nonce }(ada.nonce)
		ada.nonce = "made-an-hour-ago"
		return ada.proof("GET", "/api/hosts", token)
	}()
	for name, test := range map[string]struct{ proof, want string }{
		"none":            {"", "send a proof"},
		"used before":     {replayed, "used before"},
		"another's key":   {mallory.proof("GET", "/api/hosts", token), "a different device's key"},
		"another method":  {ada.proof("POST", "/api/hosts", token), "different request"},
		"another path":    {ada.proof("GET", "/api/devices", token), "different request"},
		"another token":   {ada.proof("GET", "/api/hosts", token+"x"), "different token"},
		"no token":        {ada.proof("GET", "/api/hosts", ""), "different token"},
		"old nonce":       {stale, "nonce"},
		"the token in it": {token, "invalid proof"},
		"cut short":       {ada.proof("GET", "/api/hosts", token)[:200], "invalid proof"},
		"of another relay's": {func() string {
			proof, err := ada.key.Prove(auth.Asked{Method: "GET", URLs: []string{"http://relay.example.net/api/hosts"}, Token: token}, ada.nonce)
			return errorOr(err, proof)
		}(), "different request"},
	} {
		if status, said := ada.send("GET", "/api/hosts", token, test.proof, nil, nil); status != http.StatusUnauthorized || !strings.Contains(said, test.want) {
			t.Errorf("%s: %d %s; want 401, %q", name, status, said, test.want)
		}
	}
	if _, err := relay.Keys().Tokens().VerifyClient(token); err != nil {
		t.Errorf("VerifyClient of the device's token = %v; want no error", err)
	}
	// In a browser, a WebSocket can carry token and proof only as subprotocols.
	dial := func(protocols ...string) error {
		conn, response, err := websocket.Dial(t.Context(), relay.URL()+"/ahp/nowhere", &websocket.DialOptions{Subprotocols: append([]string{"ahp", "bearer." + token}, protocols...)})
		if err != nil {
			return err
		}
		_ = response
		return conn.CloseNow()
	}
	if err := dial(); err == nil {
		t.Error("a WebSocket without a proof is accepted; want a refusal")
	}
	proof := ada.proof("GET", "/ahp/nowhere", token)
	if err := dial("dpop." + proof); err != nil {
		t.Errorf("a WebSocket with a proof: %v; want no error", err)
	}
	if err := dial("dpop." + proof); err == nil {
		t.Error("a used proof is accepted for a second WebSocket; want a refusal")
	}
}

// A relay restarts at the same address while the nonce of a used proof is still valid.
// The relay requires a new nonce, and the device continues with it.
func TestUsedProofStaysUsedAfterRestart(t *testing.T) {
	relay, ada := setUp(t)
	cfg := RelayConfig{DataDir: relay.dir.path, Listen: relay.public.Addr().String(), AdminListen: NoListener}
	used, spare := ada.proof("GET", "/api/hosts", ada.in.Token), ada.proof("GET", "/api/hosts", ada.in.Token)
	if status, said := ada.send("GET", "/api/hosts", ada.in.Token, used, nil, nil); status != http.StatusOK {
		t.Fatalf("a request with a new proof: HTTP %d %s; want 200", status, said)
	}
	relay.Close()
	relay, err := StartRelay(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	ada.relay = relay
	for name, proof := range map[string]string{"used proof": used, "proof that only its device knows to be unused": spare} {
		ada.nonce = ""
		if status, said := ada.send("GET", "/api/hosts", ada.in.Token, proof, nil, nil); status != http.StatusUnauthorized || ada.nonce == "" {
			t.Errorf("after a restart, a %s: %d %s, nonce %q; want 401 and a nonce", name, status, said, ada.nonce)
		}
	}
	if status, said := ada.ask("GET", "/api/hosts", ada.in.Token, nil, nil); status != http.StatusOK {
		t.Errorf("a request after the relay's restart, with a new nonce: HTTP %d %s; want 200", status, said)
	}
}

func errorOr(err error, text string) string {
	if err != nil {
		return err.Error()
	}
	return text
}

// A host-agent asks for a credential, and a person approves the request.
func TestPersonApprovesAHost(t *testing.T) {
	relay, ada := setUp(t)
	key := auth.NewHostKey()
	agent := newPhone(t, relay)
	var code peopleapi.DeviceCode
	ask := url.Values{"kind": {"host"}, "machine": {"build-7"}, "user": {"ada"}, "key": {key.PublicText()}}
	if status, said := agent.send("POST", "/auth/device", "", "", ask, &code); status != http.StatusOK {
		t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	if code.Key != key.Fingerprint() {
		t.Errorf("the relay shows the fingerprint %s; want the host-agent's %s", code.Key, key.Fingerprint())
	}
	_, id, _ := strings.Cut(code.Complete, "#")
	var waiting peopleapi.Waiting
	ada.do("GET", "/api/requests/"+id, nil, &waiting)
	if waiting.Machine != "build-7" || waiting.User != "ada" || waiting.Fingerprint != key.Fingerprint() {
		t.Errorf("the approving person is shown %+v; want machine build-7, user ada and the key's fingerprint", waiting)
	}
	at := "/api/requests/" + id
	ada.refused(400, "host", "POST", at, map[string]any{"approve": true, "code": code.UserCode, "host": "No Name"})
	ada.do("POST", at, map[string]any{"approve": true, "code": code.UserCode, "host": "build-7"}, nil)
	var got peopleapi.HostCredential
	poll := url.Values{"grant_type": {peopleapi.GrantDeviceCode}, "device_code": {code.DeviceCode}, "key": {auth.NewHostKey().PublicText()}}
	if status, said := agent.send("POST", "/auth/token", "", "", poll, &got); status != http.StatusBadRequest {
		t.Errorf("a poll with a different host key: HTTP %d %s; want 400", status, said)
	}
	poll.Set("key", key.PublicText())
	if status, said := agent.send("POST", "/auth/token", "", "", poll, &got); status != http.StatusOK {
		t.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
	}
	e, err := relay.Keys().Tokens().VerifyAgent(got.Credential.Credential)
	if err != nil || e.Host != "build-7" || !e.Key.Equal(key.Public()) {
		t.Errorf("the host's credential is %+v, %v; want build-7 with its key", e, err)
	}
	if status, said := agent.send("POST", "/auth/token", "", "", poll, nil); status != http.StatusBadRequest || strings.Contains(said, "credential\"") {
		t.Errorf("a second poll for the credential: HTTP %d %s; want 400 without a credential", status, said)
	}
}

// Only an owner of the tenant invites people, approves hosts and lists all devices. No
// person can grant more than their own authority.
func TestOnlyOwnersManagePeople(t *testing.T) {
	relay, ada := setUp(t)
	var invite struct{ Link string }
	ada.do("POST", "/api/invites", map[string]any{"subject": "bob", "level": "talk", "hosts": []string{"laptop"}}, &invite)
	bob := newPhone(t, relay)
	_, secret, _ := strings.Cut(invite.Link, "#")
	if status, said := bob.ask("POST", "/auth/setup", "", map[string]string{"invite": secret, "name": "Bob's"}, &bob.in); status != http.StatusOK {
		t.Fatalf("bob, using the setup link: HTTP %d %s; want 200", status, said)
	}
	if bob.in.Level != "talk" || bob.in.Subject != "bob" || len(bob.in.Hosts) != 1 {
		t.Errorf("bob got %+v; want the level talk for one host", bob.in)
	}
	var list struct{ Devices []people.Device }
	if bob.do("GET", "/api/devices", nil, &list); len(list.Devices) != 1 || list.Devices[0].Subject != "bob" {
		t.Errorf("bob sees the devices %+v; want only bob's own", list.Devices)
	}
	few, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: auth.DefaultTenant, Subject: "root", Hosts: []string{auth.AllHosts}, Access: auth.AccessAdmin, MaxConnections: 2, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	bearer(ada, few)("POST", "/api/invites", map[string]any{"subject": "erin", "level": "talk"}, &invite)
	erin := newPhone(t, relay)
	_, secret, _ = strings.Cut(invite.Link, "#")
	if status, said := erin.ask("POST", "/auth/setup", "", map[string]string{"invite": secret}, &erin.in); status != http.StatusOK {
		t.Fatalf("erin, using the setup link: HTTP %d %s; want 200", status, said)
	}
	if who, err := relay.Keys().Tokens().VerifyClient(erin.in.Token); err != nil || who.MaxConnections != 2 {
		t.Errorf("an owner with two connections has invited %+v, %v; want two connections", who, err)
	}
	bob.refused(404, "", "DELETE", "/api/devices/"+ada.in.Device, nil)
	bob.refused(403, "owners of hosts", "POST", "/api/invites", map[string]any{"subject": "eve", "level": "own"})
	bob.refused(400, "above your own", "POST", "/api/tokens", map[string]any{"level": "own"})
	bob.refused(400, "above your own", "POST", "/api/tokens", map[string]any{"level": "approve"})
	bob.refused(400, "not a host", "POST", "/api/tokens", map[string]any{"hosts": []string{"other"}})
	for _, pattern := range []string{"file:///*", "file:*", "FILE:///etc/*", "vscode-remote://box/etc", "git-blob:/*", "%66ile:///*", "file%3A///c:/*"} { // bob reads no files, because his channels name none
		bob.refused(400, "you may not read", "POST", "/api/tokens", map[string]any{"level": "look", "channels": []string{"*", pattern}})
	}
	bob.do("POST", "/api/tokens", map[string]any{"level": "look", "channels": []string{"mock:/1", "ahp-chat:*"}}, nil)
	bob.refused(400, "seconds", "POST", "/api/tokens", map[string]any{"seconds": 1 << 30})
	bob.refused(400, "at most 100", "POST", "/api/tokens", map[string]any{"program": strings.Repeat("x", 101)})
	ada.refused(409, "different name", "POST", "/api/invites", map[string]any{"subject": "bob", "level": "own"})
	ada.refused(400, "access", "POST", "/api/invites", map[string]any{"subject": "eve", "level": "root"})

	// An owner of some hosts can invite people only to these hosts.
	ada.do("POST", "/api/invites", map[string]any{"subject": "carol", "level": "own", "hosts": []string{"lab-*"}}, &invite)
	carol := newPhone(t, relay)
	_, secret, _ = strings.Cut(invite.Link, "#")
	if status, said := carol.ask("POST", "/auth/setup", "", map[string]string{"invite": secret}, &carol.in); status != http.StatusOK {
		t.Fatalf("carol, using the setup link: HTTP %d %s; want 200", status, said)
	}
	for _, hosts := range [][]string{{"*"}, {"laptop"}, {"lab-1", "l*"}, {auth.AllHosts}} {
		carol.refused(400, "not a host", "POST", "/api/invites", map[string]any{"subject": "dan", "level": "look", "hosts": hosts})
	}
	carol.do("POST", "/api/invites", map[string]any{"subject": "dan", "level": "own", "hosts": []string{"lab-1"}}, nil)

	agent := newPhone(t, relay)
	var code peopleapi.DeviceCode
	if status, said := agent.send("POST", "/auth/device", "", "", url.Values{"kind": {"host"}, "key": {auth.NewHostKey().PublicText()}}, &code); status != http.StatusOK {
		t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	bob.refused(404, "", "GET", "/api/requests/"+code.UserCode, nil)
	_, id, _ := strings.Cut(code.Complete, "#")
	bob.refused(404, "", "POST", "/api/requests/"+id, map[string]any{"approve": true, "code": code.UserCode, "host": "mine"})

	// A token to operate, without a device, cannot list devices.
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{Tenant: "default", Subject: "ann", Hosts: []string{"*"}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if status, said := agent.send("GET", "/api/devices", token, "", nil, nil); status != http.StatusForbidden {
		t.Errorf("GET /api/devices with a token of level operate: HTTP %d %s; want 403", status, said)
	}
}

// The approving person chooses the new device's level, at most their own. The level
// limits the device's actions, tokens, approvals and removals.
func TestApprovedDeviceHasTheChosenLevel(t *testing.T) {
	relay, ada := setUp(t)
	poll := url.Values{"grant_type": {peopleapi.GrantDeviceCode}}
	ask := func(by *phone, level string) (p *phone, waiting peopleapi.Waiting, say map[string]any) {
		t.Helper()
		p = newPhone(t, relay)
		var code peopleapi.DeviceCode
		if status, said := p.ask("POST", "/auth/device", "", url.Values{"kind": {"device"}}, &code); status != http.StatusOK {
			t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
		}
		poll.Set("device_code", code.DeviceCode)
		by.do("GET", "/api/requests/"+code.UserCode, nil, &waiting)
		say = map[string]any{"approve": true, "code": code.UserCode}
		if level != "" {
			say["level"] = level
		}
		return p, waiting, say
	}
	approve := func(by *phone, level, want string) *phone {
		t.Helper()
		p, waiting, say := ask(by, level)
		by.do("POST", "/api/requests/"+waiting.ID, say, nil)
		if status, said := p.ask("POST", "/auth/token", "", poll, &p.in); status != http.StatusOK {
			t.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
		}
		if p.in.Level != want || p.in.Subject != ada.in.Subject {
			t.Fatalf("approved with level %q: %+v; want %s", level, p.in, want)
		}
		if status, said := p.renew(); status != http.StatusOK || p.in.Level != want {
			t.Fatalf("approved with level %q, renewed: %d %s; want %s", level, status, said, want)
		}
		return p
	}
	_, waiting, say := ask(ada, "root")
	if got := strings.Join(waiting.Levels, " "); got != "look talk approve operate own" {
		t.Errorf("the owner may give the levels %q; want all five", got)
	}
	ada.refused(400, "unknown level", "POST", "/api/requests/"+waiting.ID, say)

	approve(ada, "", "own")
	talks := approve(ada, "talk", "talk")
	if _, waiting, say := ask(talks, "operate"); strings.Join(waiting.Levels, " ") != "look talk" {
		t.Errorf("a device of level talk may give the levels %s; want look and talk", waiting.Levels)
	} else {
		talks.refused(400, "above your own", "POST", "/api/requests/"+waiting.ID, say)
	}
	looks := approve(talks, "look", "look")
	byDefault := approve(talks, "", "talk")
	talks.refused(403, "owners of hosts", "POST", "/api/invites", map[string]any{"subject": "eve", "level": "look"})
	talks.refused(403, "host's owner", "POST", "/api/shares", map[string]any{"host": "laptop", "session": "mock:/1"})
	talks.refused(400, "above your own", "POST", "/api/tokens", map[string]any{"level": "own"})
	talks.refused(400, "you may not read", "POST", "/api/tokens", map[string]any{"level": "talk", "channels": []string{"*", "file:///*"}})
	approve(ada, "", "own").do("POST", "/api/tokens", map[string]any{"level": "look", "channels": []string{"*", "file:///work/*"}}, nil)
	talks.refused(403, "owners of all hosts", "GET", "/api/people", nil)
	talks.refused(403, "higher level than this", "DELETE", "/api/devices/"+ada.in.Device, nil)
	looks.refused(403, "higher level than this", "DELETE", "/api/devices/"+talks.in.Device, nil)
	var list struct{ Devices []peopleapi.ShownDevice }
	ada.do("GET", "/api/devices", nil, &list)
	levels := map[string]string{}
	for _, one := range list.Devices {
		levels[one.ID] = one.Level
	}
	if levels[ada.in.Device] != "" || levels[talks.in.Device] != "talk" || levels[looks.in.Device] != "look" {
		t.Errorf("the devices' levels are %v; want none for the owner's, talk and look", levels)
	}
	talks.do("DELETE", "/api/devices/"+byDefault.in.Device, nil, nil)
	looks.do("DELETE", "/api/devices/"+looks.in.Device, nil, nil)

	standing, good, err := relay.server.Load().people.Standing(auth.Client{Tenant: "default", Subject: ada.in.Subject, Device: talks.in.Device, Key: talks.key.Thumbprint()})
	if !good || err != nil || standing.Access != auth.AccessTalk {
		t.Errorf("Standing of a device with level talk = %+v, %v, %v; want level talk", standing, good, err)
	}

	agent := newPhone(t, relay)
	var code peopleapi.DeviceCode
	if status, said := agent.send("POST", "/auth/device", "", "", url.Values{"kind": {"host"}, "key": {auth.NewHostKey().PublicText()}}, &code); status != http.StatusOK {
		t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	_, id, _ := strings.Cut(code.Complete, "#")
	ada.refused(400, "has no level", "POST", "/api/requests/"+id, map[string]any{"approve": true, "code": code.UserCode, "host": "laptop", "level": "look"})
}

// A person enters five wrong codes. The relay ends the request, even for the right
// code, and answers the person's next codes and look-ups with 429.
func TestWrongCodesEndTheRequest(t *testing.T) {
	relay, ada := setUp(t)
	agent := newPhone(t, relay)
	var code peopleapi.DeviceCode
	ask := url.Values{"kind": {"device"}}
	if status, said := agent.ask("POST", "/auth/device", "", ask, &code); status != http.StatusOK {
		t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	_, id, _ := strings.Cut(code.Complete, "#")
	for i := range people.MaxTries {
		why := people.ErrWrong
		if i == people.MaxTries-1 {
			why = people.ErrTries
		}
		ada.refused(403, why.Error(), "POST", "/api/requests/"+id, map[string]any{"approve": true, "code": "BBBB-BBBB"})
	}
	ada.refused(404, "", "POST", "/api/requests/"+id, map[string]any{"approve": true, "code": code.UserCode})
	agent.refused(400, "access_denied", "POST", "/auth/token", url.Values{"grant_type": {peopleapi.GrantDeviceCode}, "device_code": {code.DeviceCode}})
	ada.refused(429, "wrong codes", "POST", "/api/requests/BBBB-BBBC", map[string]any{"approve": true, "code": "BBBB-BBBC"})
	ada.refused(429, "wrong codes", "GET", "/api/requests/BBBB-BBBC", nil)
}

// TestRemovedRequestsAreForgotten removes a request for access, which anybody can make, and a link that
// has expired, of which an owner can make any number. The relay must know of the removals for minutes
// only, but longer than a request is valid.
func TestRemovedRequestsAreForgotten(t *testing.T) {
	relay, _ := setUp(t)
	directory := relay.server.Load().cfg.People
	request, err := directory.Ask(people.Request{Kind: people.OfDevice, Key: newPhone(t, relay).key.Thumbprint()})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.people.Update("request."+request.ID, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := directory.Keep(people.Share{ID: "over", Tenant: "default", By: "ada", Expires: time.Now().Add(-time.Second)}); err != nil {
		t.Fatal(err)
	}
	if _, err := directory.EndShares(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"request." + request.ID, "share.over"} {
		if left := time.Until(relay.people.Get(key).Until); left < people.RequestTTL || left > 2*people.RequestTTL {
			t.Errorf("the removal of %s is known for %v; want %v to %v", key, left, people.RequestTTL, 2*people.RequestTTL)
		}
	}
}

// A device admitted by one relay is known to the next relay that reads the same store.
func TestDevicesOutliveARestart(t *testing.T) {
	store := new(memstore.Store)
	secret, err := people.NewDirectory(store).Invite(people.Invite{Person: peopleapi.OwnerOf("default", "owner"), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.NewDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	device, err := people.NewDirectory(store).Accept(secret, people.Device{Key: key.Thumbprint(), Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got, person, err := people.NewDirectory(store).Device(device.ID); err != nil || got.Key != device.Key || !person.Owns() {
		t.Errorf("the device after a restart: %+v, %+v, %v; want the same key, and an owner", got, person, err)
	}
	if _, _, err := people.NewDirectory(store).Device("device-none"); !errors.Is(err, people.ErrNone) {
		t.Errorf("Device of an unknown ID = %v; want ErrNone", err)
	}
}
