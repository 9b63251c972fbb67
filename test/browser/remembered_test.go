//go:build !race

package browser_test

import (
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/auth"
	rememberedapi "ahprelay/gateway/api/remembered"
	"ahprelay/test/procs"
)

// isRemembered waits until the relay has a session's last state in a version later than
// after. It returns that version.
func (p *page) isRemembered(s *site, session string, after uint64) (version uint64) {
	p.t.Helper()
	return p.isRememberedOf(s, hostName, session, after)
}

// isRememberedOf waits like isRemembered, for a session at the given host.
func (p *page) isRememberedOf(s *site, host, session string, after uint64) (version uint64) {
	p.t.Helper()
	token := s.tokenWith(func(c *auth.Client) { c.Hosts = []string{host} })
	p.until("the relay to have the last state of "+host, patience, func() bool {
		kept, err := procs.GetJSON[rememberedapi.Kept](p.t.Context(), s.url+"/api/hosts/"+host+"/remembered/session?uri="+url.QueryEscape(session), token)
		if err == nil {
			version = kept.Record.Version
		}
		return err == nil && version > after
	})
	return version
}

// TestConsoleReadsWhileTheHostIsAway stops the host-agent. The page still shows the
// list and the conversations, even a conversation that it has never opened. It hides
// controls that need the host. When the host returns, the page is live without a
// reload, and the text does not move.
func TestConsoleReadsWhileTheHostIsAway(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#status-text", "Live")
	p.isRemembered(s, "demo:/login", 0)
	p.openSession("demo:/notes")
	before := p.isRemembered(s, "demo:/notes", 0)
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	p.isRemembered(s, "demo:/notes", before)
	p.click("#back")

	must(t, s.agent.End(syscall.SIGTERM))
	p.wants("#sessions-note", "host offline")
	p.wants("#sessions", "Release notes")
	p.shot("away-list")
	if got := p.count("#new-session:not(:disabled)"); got != 0 {
		t.Error("a new session can be made at an unreachable host; want the button disabled")
	}
	eval[any](p, `(() => {
		const at = performance.now();
		new MutationObserver((_, o) => { if (document.querySelector('#turns')?.textContent.includes('Done. 500 runs')) { window.opened = performance.now() - at; o.disconnect(); } }).observe(document.body, { childList: true, subtree: true, characterData: true });
		return null;
	})()`)
	p.openSession("demo:/login") // this page has not opened this session before
	p.wants("#turns", "Done. 500 runs")
	p.wants("#past", "As of")
	p.wants("#past", "host offline")
	t.Logf("opening took %.0f ms", eval[float64](p, "window.opened"))
	p.accessible("remembered")
	p.shot("away-session")
	for _, control := range []string{"#prompt", "#send", "#stop", ".question button:not(:disabled)"} {
		if p.count(control) > 0 {
			t.Errorf("%s works while the host is unreachable; want it hidden", control)
		}
	}
	p.press(".chat-head details button", "Find")
	p.enter("#find input", "500 runs")
	p.wants("#find", "1 turn")
	p.click("#find [aria-label=Close]")

	eval[any](p, "window.stays = document.querySelector('#turns > :last-child'), window.top0 = window.stays.getBoundingClientRect().bottom, null")
	s.startAgent(s.host)
	p.wants("#status-text", "Live")
	p.await("#prompt")
	p.holds("the present state", "!document.querySelector('#past')")
	if !eval[bool](p, "window.stays.isConnected") {
		t.Error("the host's return redraws the last turn; want the same element")
	}
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
}

// startWaker starts a relay and a host, which has no host-agent yet. The relay's
// command to wake the host creates the file mark. startWaker returns the relay's first
// link and the file's name.
func startWaker(t *testing.T) (s *site, link, mark string) {
	t.Helper()
	s = newSite(t)
	s.tenant = "default"
	s.host = &demoHost{site: s, name: hostName, address: freeAddress(t), control: freeAddress(t)}
	s.host.prepare()
	s.host.start()
	mark = s.file("woken")
	link = s.firstRelay("--wake-command", "default/"+hostName+"=touch "+mark)
	var err error
	s.keys, err = auth.LoadKeys(s.file("data"))
	must(t, err)
	return s, link, mark
}

// TestConsoleWakesAHost wakes an absent host from the page. The relay runs the
// operator's command, and the page shows the result.
func TestConsoleWakesAHost(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s, link, mark := startWaker(t)
	s.startAgent(s.host)
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), colours("light"), chromedp.Navigate(link))
	p.click("#form button")
	p.wants("#who", "owner. You may do everything")
	p.do(chromedp.Navigate(s.url + "/"))
	p.wants("#sessions", "Release notes")
	p.holds("no way to wake a host that is online", "document.querySelector('#status-text').textContent === 'Live' && !document.querySelector('.waking')")
	must(t, s.agent.End(syscall.SIGTERM))
	p.wants(".waking", "Wake")
	p.accessible("wake")
	p.shot("away-wake")
	p.click(".waking button")
	p.wants(".waking", "Waking…")
	p.until("the command to have run", patience, func() bool { _, err := os.Stat(mark); return err == nil })
	s.startAgent(s.host)
	p.wants(".waking", "Woken by the relay, back after")
	p.shot("away-woken")
	p.wants("#status-text", "Live")
}
