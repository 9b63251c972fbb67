//go:build !race

package browser_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"rsc.io/qr"

	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/idp"
	"ahprelay/test/procs"
)

// TestFirstPhoneTakesFewSteps starts without any setup, and connects a phone to a host.
// It counts the commands and taps. Then it admits a second device by a code and removes
// it.
func TestFirstPhoneTakesFewSteps(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := newSite(t)
	s.host = &demoHost{site: s, address: freeAddress(t), control: freeAddress(t)}
	s.host.prepare()
	s.host.start()
	began, steps := time.Now(), 0
	does := func(what string) {
		steps++
		t.Logf("%d  %s, after %v", steps, what, time.Since(began).Round(time.Millisecond))
	}
	does("command: relay serve")
	link := s.firstRelay("--oidc", providerFile(t, s))

	does("tap: the link")
	p.do(phone(), chromedp.Navigate(link))
	p.await("#form button")
	if at := eval[string](p, "location.href"); strings.Contains(at, "#") {
		t.Errorf("the address %s contains the secret; want it removed", at)
	}
	p.shot("people-setup")
	does("tap: Sign in")
	p.click("#form button")
	p.wants("#who", "owner. You may do everything")
	p.wants("#next", "host-agent up "+s.url)
	p.await("#code")
	if p.shows("#in") {
		t.Error("a device without a host sees the account page; want the next step only")
	}
	p.wants("#next button", "Copy")
	p.accessible("the first host")
	p.shot("people-device")
	if got := p.later("(async () => { const {stored} = await import('/pages/keys.js'); const {keys} = await stored();" +
		" return crypto.subtle.exportKey('jwk', keys.privateKey).then(() => 'read', (e) => e.name); })()"); got != "InvalidAccessError" {
		t.Errorf("the key that the browser keeps: %s; want one that cannot be read", got)
	}

	does("command: host-agent up")
	code, fingerprint := s.joins(p, s.bench)

	does("tap: the code, typed")
	p.enter("#code", strings.ToLower(code))
	p.click("#lookup button[type=submit]")
	p.wants("#what", fingerprint)
	p.enter("#host", hostName)
	p.shot("people-approve")
	does("tap: Approve")
	p.click("#decide button[type=submit]")
	p.wants("#status-text", "Live")
	p.hostIs(hostName, "online")
	if got := eval[string](p, "[sessionStorage, localStorage].map((s) => s.getItem('ahp-relay-token') ?? 'none').join()"); got != "none,none" {
		t.Errorf("the console that the device opens goes by a token: %s; want the device's key", got)
	}
	p.shot("people-console")
	t.Logf("live at the host with %d commands and taps, after %v", steps, time.Since(began).Round(time.Millisecond))
	if steps > 6 {
		t.Errorf("%d commands and taps; want at most 6", steps)
	}
	secondDevice(t, p, s)
	signsIn(t, s)
	sees(t, p)
}

// firstRelay starts a relay that has no owner yet, and returns the link for the first
// owner.
func (s *site) firstRelay(flags ...string) (link string) {
	t := s.t
	t.Helper()
	relay := s.bench.Process("", "relay", procs.RelayProgram, append([]string{"serve", "--data-dir", s.file("data"), "--listen", "127.0.0.1:0", "--admin-listen", gateway.NoListener, "--drain", "1s"}, flags...)...)
	must(t, relay.Launch(t.Context(), func() error {
		if found := regexp.MustCompile(`(http://\S+)/setup#\S+`).FindStringSubmatch(relay.Log()); found != nil {
			link, s.url = found[0], found[1]
			return nil
		}
		return errors.New("no setup link")
	}))
	t.Cleanup(func() { s.end(relay) })
	s.relay = relay
	return link
}

// joins starts host-agent up from these programs, which asks to join the relay. It
// returns the code and the fingerprint that the program prints.
func (s *site) joins(p *page, programs *procs.Bench) (code, fingerprint string) {
	s.t.Helper()
	return s.joinsWith(p, programs, "--upstream", "ws://"+s.host.address)
}

// admits enters a host-agent's code on the page, checks the fingerprint there, and
// approves the host-agent.
func (p *page) admits(code, fingerprint string) {
	p.t.Helper()
	p.enter("#code", code)
	p.click("#lookup button[type=submit]")
	p.wants("#what", fingerprint)
	p.enter("#host", hostName)
	p.click("#decide button[type=submit]")
	p.wants("#status-text", "Live")
}

// upFlags returns the arguments for host-agent up at this site.
func (s *site) upFlags(more ...string) []string {
	return append([]string{"up", s.url, "--control", "off", "--no-qr", "--credentials-file", s.file("credential")}, more...)
}

// joinsWith is joins with flags that name the host.
func (s *site) joinsWith(p *page, programs *procs.Bench, flags ...string) (code, fingerprint string) {
	t := s.t
	t.Helper()
	agent := programs.Process("", "host-agent", procs.AgentProgram, s.upFlags(flags...)...)
	s.agent = agent
	must(t, agent.Launch(t.Context(), func() error {
		if !strings.Contains(agent.Log(), "type the code") {
			return errors.New("no code")
		}
		return nil
	}))
	t.Cleanup(func() { s.end(agent) })
	shown := func(pattern string) (found []string) {
		t.Helper()
		p.until(pattern+" in the terminal", patience, func() bool {
			found = regexp.MustCompile(pattern).FindStringSubmatch(agent.Log())
			return found != nil
		})
		return found
	}
	return shown(`\n  ([B-Z]{4}-([B-Z]{4}))\n`)[1], shown(`must show the fingerprint (\S+)\.`)[1]
}

// TestInstalledProgramsPairAndServe pairs a host-agent that the install script has
// installed into a small separate system, and opens its host's sessions on a phone.
// make packages names that system.
func TestInstalledProgramsPairAndServe(t *testing.T) {
	root := os.Getenv("AHP_TEST_INSTALLED")
	if root == "" {
		t.Skip("make packages runs it")
	}
	p, s := newPage(t), newSite(t)
	installed := &procs.Bench{Programs: t.TempDir(), Dir: t.TempDir()}
	t.Cleanup(installed.Kill)
	script := fmt.Sprintf("#!/bin/sh\nexec chroot '%s' /root/.local/bin/host-agent \"$@\"\n", root)
	must(t, os.WriteFile(filepath.Join(installed.Programs, procs.AgentProgram), []byte(script), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, s.bench.Dir), 0o700)) // directory of the credential
	must(t, os.MkdirAll(filepath.Join(root, installed.Dir), 0o700))
	s.host = &demoHost{site: s, address: freeAddress(t), control: freeAddress(t)}
	s.host.prepare()
	s.host.start()

	link := s.firstRelay()
	p.do(phone(), chromedp.Navigate(link))
	p.click("#form button")
	p.wants("#who", "owner. You may do everything")
	code, fingerprint := s.joins(p, installed)
	p.admits(code, fingerprint)
	p.hostIs(hostName, "online")
	p.wants("#sessions", "Fix the flaky login test")
	if got := eval[string](p, overflows); got != "" {
		t.Errorf("on a phone, these elements do not fit:\n%s", got)
	}
	p.save("installed")
}

// sees lets the owner view people and the audit, add a person, and remove that person.
func sees(t *testing.T, p *page) {
	t.Helper()
	p.wants("#people", "Dr ann")
	p.wants("#audit", "signed in at Example Inc")
	p.enter("#invite-name", "bob")
	p.click("#invite button")
	p.wants("#invited", "/setup#")
	p.await("#invited svg.qr")
	p.wants("#invited button", "Copy")
	p.wants("#invites", "bob")
	p.wants("#invites", "may talk to agents · all hosts · by owner")
	if got := eval[string](p, overflows); got != "" {
		t.Errorf("on a phone, these elements do not fit:\n%s", got)
	}
	p.shot("people-team")
	p.do(chromedp.EmulateViewport(1440, 900))
	eval[any](p, "[...document.querySelectorAll('#people li')].find((li) => li.textContent.includes('ann')).querySelector('button').click(), 0")
	p.wants("#sure-text", "All of their devices, tokens and links end at once.")
	p.accessible("a question before a removal")
	p.press("#sure button", "Remove")
	p.until("one person", patience, func() bool { return eval[int](p, "document.querySelectorAll('#people li').length") == 1 })
	p.click("#invites button")
	p.wants("#invites", "None.")
}

// providerFile starts an identity provider, and writes the file that configures it for
// the relay. It returns the file's name.
func providerFile(t *testing.T, s *site) string {
	t.Helper()
	issuer, _ := idp.Start(t, "")
	secret, file := s.file("secret"), s.file("oidc.yaml")
	must(t, os.WriteFile(secret, []byte(idp.Secret), 0o600))
	must(t, os.WriteFile(file, []byte("- issuer: "+issuer+"\n  audience: ahp\n  name: Example Inc\n  client-id: "+idp.ClientID+"\n  client-secret-file: "+secret+
		"\n  rules:\n    - when: [{claim: groups, contains: dev}]\n      hosts: [\"*\"]\n      access: talk\n"), 0o600))
	return file
}

// signsIn opens the relay's page on a new device. The identity provider refuses a sign-in
// without credentials. After a sign-in as ann, the page shows the level and host of the
// relay's rules, also after a reload.
func signsIn(t *testing.T, s *site) {
	t.Helper()
	p := newPage(t)
	p.do(phone(), chromedp.Navigate(s.url+"/device"))
	p.await("#providers button")
	p.shot("people-signin")
	p.click("#providers button")
	p.await("#sub")
	p.click("button") // tries to sign in without credentials
	p.wants("#said", "The identity provider refuses")
	p.click("#providers button")
	p.await("#sub")
	p.enter("#sub", "ann")
	p.enter("#group", "dev")
	p.click("button")
	p.wants("#who", "may talk to agents")
	p.wants("#hosts", hostName)
	if at := eval[string](p, "location.href"); at != s.url+"/device" {
		t.Errorf("the address is %s; want /device without the identity provider's answer", at)
	}
	p.do(chromedp.Reload())
	p.wants("#who", "ann@")
}

// later evaluates a promise on the page, waits for its value and returns it.
func (p *page) later(promise string) (text string) {
	p.t.Helper()
	eval[any](p, "globalThis.came = null, void "+promise+".then((text) => { globalThis.came = String(text); }, (e) => { globalThis.came = 'failed: ' + e; })")
	p.until(promise, patience, func() bool {
		text = eval[string](p, "globalThis.came ?? ''")
		return text != ""
	})
	return text
}

// freeAddress returns a loopback address, with a port, at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := procs.FreeAddress()
	must(t, err)
	return address + ":18990"
}

// squares returns the QR code for a text in the form in which the page draws it.
func squares(t *testing.T, text string) string {
	t.Helper()
	code, err := qr.Encode(text, qr.L)
	must(t, err)
	var path strings.Builder
	for y := range code.Size {
		for x := range code.Size {
			if code.Black(x, y) {
				fmt.Fprintf(&path, "M%d %dh1v1h-1z", x+4, y+4)
			}
		}
	}
	return path.String()
}

// secondDevice asks for access in a second browser. The first browser approves it, and
// removes it later.
func secondDevice(t *testing.T, p *page, s *site) {
	t.Helper()
	second := newPage(t)
	second.do(desktop(), chromedp.Navigate(s.url+"/device#ask=default"))
	second.until("a code", patience, func() bool { return len(second.text("#ask-code")) == 9 })
	second.shot("people-second")
	fingerprint := second.text("#ask-key")

	p.do(chromedp.Navigate(s.url + "/device")) // this browser is still signed in
	p.wants("#who", "owner")
	p.click("#to-add-device")
	p.await("#link svg.qr")
	p.accessible("another device")
	p.enter("#code-device", "BBBB-BBBB")
	p.click("#lookup-device button[type=submit]")
	p.wants("#said", "not found")

	// A scan of the second device's QR code opens its request on the first device. The
	// code disappears from the address.
	code := second.text("#ask-code")
	id := p.later("import('/pages/keys.js').then((k) => k.call('GET', 'api/requests/" + code + "')).then((r) => r.id)")
	link := s.url + "/device#" + id + "=" + code
	if got := eval[string](second, "document.querySelector('#ask-qr path').getAttribute('d')"); got != squares(t, link) {
		t.Errorf("the second device's QR code differs from %s", link)
	}
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link))
	p.wants("#what", fingerprint)
	p.holds("no code to be asked for", "document.querySelector('#coding').hidden && !location.href.includes('#')")
	if got := eval[string](p, "[document.querySelector('#level :checked').value, ...[...document.querySelectorAll('#level input')].map((o) => o.value)].join()"); got != ",,look,talk,approve,operate,own" {
		t.Errorf("the page offers the levels %s; want all of them, and none chosen", got)
	}
	p.click("#level [value=talk]")
	p.shot("people-approve-device")
	p.click("#decide button[type=submit]")
	second.wants("#who", "owner. You may talk to agents")
	second.wants("#hosts", hostName)

	token := second.later("(async () => (await import('/pages/keys.js')).accessToken())()")
	if _, err := procs.GetJSON[hostsapi.Info](t.Context(), s.url+"/api/hosts/"+hostName, token); err == nil {
		t.Error("the device's token works without its key; want an error")
	}
	open := "(async () => { const {subprotocols} = await import('/pages/keys.js'); const path = '/ahp/" + hostName + "';" +
		" globalThis.ws = new WebSocket(location.origin.replace('http', 'ws') + path, await subprotocols(path));" +
		" ws.onclose = (e) => { globalThis.endCode = e.code; }; return new Promise((r) => { ws.onopen = () => r(ws.protocol); ws.onerror = () => r('failed'); }); })()"
	if got := second.later(open); got != "ahp" {
		t.Errorf("a WebSocket by the device: %s; want ahp", got)
	}

	p.until("two devices", patience, func() bool { return eval[int](p, "document.querySelectorAll('#devices li').length") == 2 })
	p.wants("#devices", "may talk to agents")
	p.shot("people-devices")
	eval[any](p, "document.querySelector('#hosts button').mark = 'the same', 0")
	eval[any](p, "[...document.querySelectorAll('#devices li')].find((li) => !li.textContent.includes('this one')).querySelector('button').click()")
	p.press("#sure button", "Remove")
	p.until("one device", patience, func() bool { return eval[int](p, "document.querySelectorAll('#devices li').length") == 1 })
	if got := eval[string](p, "document.querySelector('#hosts button').mark ?? 'another'"); got != "the same" {
		t.Errorf("the button of an unchanged host is %s; want the same", got)
	}
	second.until("the connection to end with 4501", patience, func() bool { return eval[int](second, "globalThis.endCode ?? 0") == 4501 })
	second.do(chromedp.Reload())
	second.wants("#out", "not signed in")
}

// TestOnlyOwnersAreAskedToConnectAHost opens /device at a relay without hosts: as its owner, and as a
// person who may talk to agents and cannot admit a host.
func TestOnlyOwnersAreAskedToConnectAHost(t *testing.T) {
	t.Parallel()
	p, guest := newPage(t), newPage(t)
	s := startRelayFor(t, stackConfig{still: true})
	p.do(phone(), chromedp.Navigate(s.invite()))
	p.click("#form button")
	p.await("#code")

	link := p.later("import('/pages/keys.js').then((k) => k.call('POST', 'api/invites', { subject: 'guest', level: 'talk', hosts: ['*'] })).then((r) => r.link)")
	guest.do(phone(), chromedp.Navigate(link))
	guest.click("#form button")
	guest.wants("#who", "guest. You may talk to agents")
	guest.until("a step", patience, func() bool { return guest.shows("#in") || guest.shows("#add") })
	if guest.shows("#add") {
		t.Error("a person who cannot connect a host sees the form for that; want the overview")
	}
	guest.wants("#hosts", "Ask an owner to connect one.")
	if guest.shows("#to-add") {
		t.Error("the overview offers to add a host; want that only for owners")
	}
	guest.shot("people-guest")
}
