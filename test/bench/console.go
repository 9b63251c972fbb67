package bench

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	web "ahprelay/console/site"
	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// The console is measured under these conditions: a phone with a slow processor.
const (
	slowdown      = 4 // times slower than this machine
	consoleTurns  = 5000
	consoleStream = 6 * time.Second
	deltasApart   = 5 // milliseconds between two deltas of the prompt talk
)

// consolePart measures the console in Chromium, with a phone's screen and a slowed
// processor.
func consolePart(l *testbed) []Figure {
	_, size, err := web.FirstLoad()
	must.Do(err)
	figures := []Figure{newFigure("what a browser gets before anything is shown, compressed", "KB", series{float64(size) / 1000}).want(atMost(150)).means("It opens on a bad line, too.")}
	if l.o.Tiny {
		return figures // tests may run without a browser
	}
	s := l.site(siteConfig{upstreams: []string{l.demoHost(must.Get(procs.FreeAddress()))}})
	token := s.tokens(0)[0]
	var shown, opened, scrolled, frames, unslowed, least, grown series
	l.rounds(func(int) {
		b := l.browser()
		defer b.close()
		got := b.measure(s.console(token))
		shown, opened, scrolled, grown = append(shown, got.Shown), append(opened, got.Opened), append(scrolled, got.Scrolled), append(grown, got.Grown)
		frames, unslowed, least = append(frames, got.Frame), append(unslowed, got.Unslowed), append(least, b.bare(s.url(), hostName(0), token))
	})
	return append(figures,
		newFigure("from the address to the list of sessions, nothing cached", "ms", shown).orient(atMost(1500)).means("One looks, and sees."),
		newFigure(fmt.Sprintf("a session of %d turns opened", consoleTurns), "ms", opened).orient(atMost(500)).means("Long sessions open like short ones."),
		newFigure(fmt.Sprintf("scrolling up through %d turns: work for a frame, p95", consoleTurns), "ms", scrolled).orient(atMost(16)).means("Old turns come smoothly, too."),
		newFigure("200 deltas/s of one answer: work for a frame, p95", "ms", frames).beside("a page that only appends them to a pre", frames, least).orient(atMost(16)).means("Words come smoothly."),
		newFigure("200 deltas/s of one answer, the processor not slowed down: work for a frame, p95", "ms", unslowed).want(atMost(16)).means("Words come smoothly."),
		newFigure("memory of the page that 1200 deltas leave", "KB", grown),
	)
}

// console returns the address of the console for the first host.
func (s *site) console(token string) string {
	return s.url() + "/#" + url.Values{"host": {hostName(0)}, "token": {token}}.Encode()
}

// demoHost starts a host with the demo's sessions at an IP address, and returns its URL.
func (b *testbed) demoHost(ip string, flags ...string) string {
	address := net.JoinHostPort(ip, "18990")
	host := b.bench.Process("", "demo", procs.HostProgram, append([]string{"--demo", "--listen", address}, flags...)...)
	must.Do(host.Launch(b.ctx, func() error { return reachable(address) }))
	return "ws://" + address
}

// A browser is a Chromium with one page.
type browser struct {
	ctx   context.Context
	close func()
}

// browser starts a Chromium. more are additional flags.
func (b *testbed) browser(more ...chromedp.ExecAllocatorOption) *browser {
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		must.Fail("no Chromium on the PATH")
	}
	flags := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.NoFirstRun, chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("js-flags", "--expose-gc"), chromedp.Flag("enable-precise-memory-info", true),
	}
	allocated, endAllocator := chromedp.NewExecAllocator(b.ctx, append(flags, more...)...)
	ctx, end := chromedp.NewContext(allocated)
	return &browser{ctx, func() {
		_ = chromedp.Cancel(ctx) // waits for the browser's end
		end()
		endAllocator()
	}}
}

// A measured is the result of a round: times in ms, and memory in KB.
type measured struct{ Shown, Opened, Scrolled, Frame, Grown, Unslowed float64 }

// phoneScreen gives a page the screen of a phone.
var phoneScreen = chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile)

func (b *browser) measure(address string) (m measured) {
	must.Do(chromedp.Do(b.ctx, phoneScreen, slowed(slowdown), chromedp.Navigate(address)))
	b.until(`[...document.querySelectorAll("#sessions li")].length > 0`)
	m.Shown = b.number(`performance.now()`)
	b.prepare()
	m.Opened = b.open()
	m.Scrolled = b.scroll()
	m.Frame, m.Grown = b.stream()
	must.Do(chromedp.Do(b.ctx, slowed(1)))
	m.Unslowed, _ = b.stream()
	must.Do(chromedp.Do(b.ctx, slowed(slowdown)))
	return m
}

// slowed makes the page's processor slower by a factor.
func slowed(times float64) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		return cdp.Call(ctx, target, emulation.SetCPUThrottlingRate, emulation.SetCPUThrottlingRateParams{Rate: times})
	}
}

// scroll scrolls up through the turns of the open session for 10 s, by a screen in each
// frame. It returns the time that the page worked for each frame.
func (b *browser) scroll() float64 {
	b.do(meter, `true`)
	b.do(`window.top_ = false; (() => {
		const log = document.querySelector("#log");
		const ends = performance.now() + 10_000; // a slow machine stops before the first turn
		let still = 0;
		const up = () => {
			const before = log.scrollTop;
			log.scrollTop -= innerHeight;
			still = log.scrollTop === before && !document.querySelector("#earlier") ? still + 1 : 0;
			if (still < 5 && performance.now() < ends) requestAnimationFrame(up);
			else window.top_ = true;
		};
		up();
	})()`, `true`)
	b.untilEach(500*time.Millisecond, `window.top_ === true`)
	took := b.number(frameP95)
	b.do(`document.querySelector("#to-end")?.click()`, `document.querySelector("#to-end") === null`)
	return took
}

// prepare creates a session with many turns, and returns to the list.
func (b *browser) prepare() {
	b.newSession()
	b.say(fmt.Sprintf("history %d", consoleTurns))
	b.until(`document.querySelectorAll("#turns > article").length >= 20 && document.querySelector("#stop") === null`)
	b.back()
}

func (b *browser) newSession() {
	b.do(`document.querySelector("#new-session").click()`, `document.querySelector("#create") !== null`)
	b.do(`document.querySelector("#create").click()`, `document.querySelector("#composer") !== null`)
}

// back returns to the list of sessions.
func (b *browser) back() {
	b.do(`document.querySelector("#back").click()`, `!document.querySelector("#turns")?.children.length`)
}

// open opens the session that prepare has created. It returns the time from the press
// to the frame that shows the session's end.
func (b *browser) open() float64 {
	b.do(`window.took = 0; (() => {
		const row = [...document.querySelectorAll("#sessions li")].find((li) => li.textContent.includes("history"));
		const from = performance.now();
		const look = () => {
			if (document.querySelectorAll("#turns > article").length >= 20) requestAnimationFrame(() => setTimeout(() => { window.took = performance.now() - from; }));
			else requestAnimationFrame(look);
		};
		row.querySelector("button").click();
		look();
	})()`, `window.took > 0`)
	return b.number(`window.took`)
}

// deltas is the number of words that the agent streams.
const deltas = int(consoleStream/time.Millisecond) / deltasApart

// meter is a script that records how long the page works for each frame: from the
// frame's beginning until it is drawn.
const meter = `window.frames_ = []; (() => {
	const { port1, port2 } = new MessageChannel();
	let began = 0;
	port1.onmessage = () => { window.frames_.push(performance.now() - began); };
	const next = (at) => { began = at; port2.postMessage(0); requestAnimationFrame(next); };
	requestAnimationFrame(next);
})()`

// frameP95 is the p95 of the recorded times.
const frameP95 = `(window.frames_.sort((a, b) => a - b), window.frames_[Math.floor(window.frames_.length * 0.95)])`

// metered records frames until holds is true, and returns the p95 of their times. It
// seldom checks holds, because the check itself makes the page work.
func (b *browser) metered(holds string) float64 {
	b.do(`window.frames_.length = 0`, `true`)
	select {
	case <-b.ctx.Done():
		must.Do(context.Cause(b.ctx))
	case <-time.After(consoleStream):
	}
	b.untilEach(500*time.Millisecond, holds)
	return b.number(frameP95)
}

// bareScript makes an empty page of the relay show the same stream with as little work
// as possible.
const bareScript = `window.talking = ''; window.bare = async (host, token, prompt) => {
	document.body.replaceChildren();
	document.body.style.margin = 0;
	const log = document.body.appendChild(document.createElement('div'));
	log.style.cssText = 'height: 100vh; overflow-y: auto';
	const pre = log.appendChild(document.createElement('pre'));
	pre.style.cssText = 'white-space: pre-wrap; margin: 0; font: 15px sans-serif';
	const text = pre.appendChild(document.createTextNode(''));
	const ws = new WebSocket(location.origin.replace('http', 'ws') + '/ahp/' + host, ['ahp', 'bearer.' + token]);
	const calls = new Map();
	let more = '';
	const send = (method, params) => new Promise((ok) => { calls.set(calls.size + 1, ok); ws.send(JSON.stringify({ jsonrpc: '2.0', id: calls.size, method, params })); });
	ws.onmessage = ({ data }) => {
		const { id, method, params, result } = JSON.parse(data);
		if (method !== 'action') { if (id !== undefined) calls.get(id)?.(result); return; }
		if (params.action.type === 'chat/turnComplete') window.talking = 'done';
		if (params.action.type !== 'chat/delta') return;
		window.talking ||= 'yes';
		if (!more) requestAnimationFrame(() => { text.appendData(more); more = ''; log.scrollTop = 1e9; });
		more += params.action.content;
	};
	await new Promise((ok) => { ws.onopen = ok; });
	const { snapshots } = await send('initialize', { channel: 'ahp-root://', protocolVersions: ['1.0.0', '0.9.0'], clientId: 'bare-' + Math.random(), initialSubscriptions: ['ahp-root://'] });
	const { provider } = snapshots[0].state.agents[0];
	const session = provider + ':/' + Math.random();
	await send('createSession', { channel: session, provider });
	const { state } = (await send('subscribe', { channel: session })).snapshot;
	const channel = state.defaultChat ?? state.chats[0].resource;
	await send('subscribe', { channel });
	ws.send(JSON.stringify({ jsonrpc: '2.0', method: 'dispatchAction', params: { channel, clientSeq: 1,
		action: { type: 'chat/turnStarted', turnId: 'bare', startedAt: new Date().toISOString(), message: { text: prompt, origin: { kind: 'user' } } } } }));
}`

// bare measures the same as stream, on a page that only appends the words to a pre
// element.
func (b *browser) bare(relay, host, token string) float64 {
	must.Do(chromedp.Do(b.ctx, chromedp.Navigate(relay+"/outside.js"))) // the browser shows this script as text
	b.do(meter, `true`)
	b.do(bareScript, `true`)
	b.do(fmt.Sprintf(`bare(%q, %q, "talk %d")`, host, token, deltas), `window.talking !== ""`)
	return b.metered(`window.talking === "done"`)
}

// stream makes the agent stream a long text. It returns how long the page works for
// each frame, and how much its memory grows.
func (b *browser) stream() (frame, grown float64) {
	before := b.number(`gc(), performance.memory.usedJSHeapSize / 1000`)
	b.do(meter, `true`)
	b.say(fmt.Sprintf("talk %d", deltas))
	b.until(`document.querySelector("#stop") !== null`)
	frame = b.metered(`document.querySelector("#stop") === null`)
	after := b.number(`gc(), performance.memory.usedJSHeapSize / 1000`)
	return frame, max(0, after-before)
}

func (b *browser) say(prompt string) {
	b.enter("#prompt", prompt, "#send", fmt.Sprintf(`document.querySelector("#turns").textContent.includes(%q)`, prompt))
}

// enter enters a text into a field, presses a button, and waits until holds is true.
func (b *browser) enter(field, text, button, holds string) {
	b.do(fmt.Sprintf(`(() => {
		const at = document.querySelector(%q);
		at.value = %q;
		at.dispatchEvent(new Event("input", {bubbles: true}));
		setTimeout(() => document.querySelector(%q).click(), 100);
	})()`, field, text, button), holds)
}

// do runs a script, and waits until holds is true.
func (b *browser) do(js, holds string) {
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[any](js+"; null")); err != nil {
		must.Fail("%s: %w", js, err)
	}
	b.until(holds)
}

// patience limits each step.
const patience = time.Minute

func (b *browser) until(holds string) { b.untilEach(5*time.Millisecond, holds) }

func (b *browser) untilEach(pause time.Duration, holds string) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](holds))
		if err != nil {
			must.Fail("%s: %w", holds, err)
		}
		if ok {
			return
		}
	}
	must.Fail("waited %v for %s", patience, holds)
}

func (b *browser) number(js string) float64 {
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[float64](js))
	if err != nil {
		must.Fail("%s: %w", js, err)
	}
	return v
}
