//go:build !race

package browser_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ahprelay/agenthost"
)

// pictures enables screenshots for all states and forms: see make pictures.
var pictures = os.Getenv("PICTURES") != ""

// forms are the screen sizes and colour schemes.
var forms = []struct {
	name    string
	size    step
	colours string
}{
	{"desktop-light", chromedp.EmulateViewport(1440, 900), "light"},
	{"desktop-dark", chromedp.EmulateViewport(1440, 900), "dark"},
	{"phone-light", chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), "light"},
	{"phone-dark", chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), "dark"},
	{"tablet-light", chromedp.EmulateViewport(820, 1180, chromedp.EmulateMobile), "light"},
	{"tablet-dark", chromedp.EmulateViewport(820, 1180, chromedp.EmulateMobile), "dark"},
}

// seen checks a state with axe-core and compares its layout, in two forms. With pictures,
// it checks the state in all forms, and takes a picture of each.
func (p *page) seen(name string) {
	p.t.Helper()
	for i, f := range forms {
		if !pictures && i != 0 && i != 3 {
			continue
		}
		p.do(f.size, colours(f.colours))
		p.settles()
		p.accessible(name + " " + f.name)
		if i == 0 || i == 3 { // other forms differ only in colours, which axe-core checks
			p.laidOut(name, f.name)
		}
		if pictures {
			p.save(name + "-" + f.name)
		}
	}
	p.do(forms[0].size, colours("light"))
	p.settles()
}

// settles waits until the page is drawn.
func (p *page) settles() {
	p.t.Helper()
	eval[any](p, "window.drawn = false; requestAnimationFrame(() => requestAnimationFrame(() => { window.drawn = true; })); null")
	p.holds("the page to be drawn", "window.drawn")
}

// accessible fails on axe-core's findings. No page has sounds or turns itself, so axe-core need not
// load style sheets and media again for those rules; the findings name elements by their text.
func (p *page) accessible(state string) {
	p.t.Helper()
	if !eval[bool](p, "'axe' in window") {
		script, err := os.ReadFile("../../console/npm/axe-core/axe.min.js")
		must(p.t, err)
		eval[any](p, string(script)+"; null")
	}
	eval[any](p, `window.found = ''; axe.run({exclude: ['iframe']}, {resultTypes: ['violations'], preload: false, selectors: false}).then((r) => {
		window.found = JSON.stringify(r.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 160) + ' ' + n.any.concat(n.all).map((c) => c.message).join(' ').slice(0, 200)).join(' | ')));
	}, (e) => { window.found = JSON.stringify([String(e)]); }); null`)
	p.until("axe-core", patience, func() bool { return eval[string](p, "window.found") != "" })
	var found []string
	must(p.t, json.Unmarshal([]byte(eval[string](p, "window.found")), &found))
	for _, f := range found {
		p.t.Errorf("%s is not accessible: %s", state, f)
	}
}

// count returns the number of matching elements.
func (p *page) count(selector string) int {
	return eval[int](p, fmt.Sprintf("document.querySelectorAll(%q).length", selector))
}

// TestConsoleStatesAreAccessible goes through all agent output and questions, and answers them.
// Each state is accessible.
func TestConsoleStatesAreAccessible(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(chromedp.EmulateViewport(1440, 900), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#sessions", "Fix the flaky login test")
	p.seen("inbox")
	p.click("#new-session")
	p.await("#create")
	p.seen("new-session")
	p.chooses()
	p.click("#create")
	p.wants("#chat-note", "No messages yet.")

	// All kinds of parts are shown; unknown kinds are folded.
	p.say("show everything")
	p.wants(lastTurn+" .parts", "That is everything.")
	for _, want := range []string{".md table td", ".md pre.code .hl-keyword", ".md a[target=_blank][rel~=noopener]", ".thinking", ".system", ".picture", ".edits", ".tool[data-kind=command] .error"} {
		p.until(want, patience, func() bool { return p.count(lastTurn+" "+want) > 0 })
	}
	p.wants(lastTurn+" .parts > .raw", "of a version to come")
	p.wants(lastTurn+" .tool .raw", "x-smell")
	p.wants(lastTurn+" .tool[data-kind=command] pre.command", "go test ./cart")
	if got := p.text(lastTurn + ` [data-call=tc-failed] [aria-label=Output]`); got != "FAIL cart 2.1s\n" {
		t.Errorf("the coloured terminal output is shown as %q; want FAIL cart 2.1s", got)
	}
	if got := eval[string](p, "[...document.querySelectorAll('#turns .code, #turns code')].map((e) => getComputedStyle(e).textTransform).find((t) => t !== 'none') ?? 'none'"); got != "none" {
		t.Errorf("code is shown with the text transform %s; want none", got)
	}
	p.seen("everything")
	if got := eval[string](p, `((pre) => { const wraps = () => pre.classList.contains('wraps') + ' ' + getComputedStyle(pre.firstChild).whiteSpace;
		const before = wraps(); pre.querySelector('.wrap-code').click();
		return [getComputedStyle(pre, '::after').content, before, wraps(), pre.querySelector('.wrap-code').ariaPressed, document.querySelectorAll('#turns li.task').length].join(); })(document.querySelector(`+js(lastTurn+" pre.code")+`))`); got != `"go",false pre,true pre-wrap,true,2` {
		t.Errorf("the code's language, its wrap switch and the task items are %s; want go, a switch that wraps the lines, and two task items", got)
	}

	p.uses()
	p.approves()
	p.looks()
	p.asks()
	p.queues()
	p.forks()
	p.servers()

	// A chat with a different agent.
	p.say("subagent")
	p.wants(lastTurn+" .parts", "Another agent has looked.")
	p.seen("subagent")
	p.click(lastTurn + " .tool summary")
	p.click(lastTurn + " .tool .chip")
	p.wants("#turns", "You said: there are none")
	if p.shows("#composer") {
		t.Error("the page offers an editor in a worker's chat; want none")
	}
	p.click(".chat-chip")

	eval[any](p, `document.activeElement.blur(); dispatchEvent(new KeyboardEvent("keydown", {key: "k", ctrlKey: true}))`)
	p.enter("#palette input", "flaky")
	p.wants("#palette-list", "Fix the flaky login test")
	p.seen("palette")
	p.keys("#palette input", "\r")
	p.wants("#chat-title", "Fix the flaky login test")
	eval[any](p, `dispatchEvent(new KeyboardEvent("keydown", {key: "k", ctrlKey: true}))`) // the palette may cover a command's dialog, too
	p.enter("#palette input", "Check the")
	p.click("#palette-list [role=option]")
	p.wants("#help", "Host-agent")
	p.seen("help")
	p.click("#help [aria-label=Close]")

	// Formulas are parsed in a sandbox. Prices are not formulas, and an invalid formula
	// stays as text.
	p.say(`see \(\frac{1}{2}\), $5 or $10, $x^2$ and \(\href{javascript:alert(1)}{x}\) and \(\nonsense{\)`)
	p.holds("two formulas", "document.querySelectorAll("+js(lastTurn+" .formula math")+").length >= 2 && document.querySelector("+js(lastTurn+" .formula mfrac")+") !== null")
	if got := p.text(lastTurn + " .md"); !strings.Contains(got, "$5 or $10,") || !strings.Contains(got, `\nonsense{`) {
		t.Errorf("the answer reads %q; want the dollar amounts and the damaged formula as text", got)
	}
	if eval[bool](p, "document.querySelector("+js(lastTurn+" .formula a, "+lastTurn+" .formula [href], "+lastTurn+" .formula annotation")+") !== null") {
		t.Error("a formula contains a link; want none")
	}
	p.shot("formula")

	// Diagrams are drawn in a sandbox, and shown as pictures. An invalid diagram stays as
	// text.
	p.say("look\n\n```mermaid\nno diagram <img src=x onerror=alert(1)>\n```\n\n```mermaid\ngraph LR\n A[Relay] --> B{Host?}\n B -->|yes| C[Agent]\n click A href \"javascript:alert(1)\"\n```")
	p.holds("a diagram with a size", "(i => i.complete && i.naturalWidth > 100 && i.naturalHeight > 20)(document.querySelector("+js(lastTurn+" .diagram img")+"))")
	if got := eval[string](p, "decodeURIComponent(document.querySelector("+js(lastTurn+" .diagram img")+").src)"); !strings.HasPrefix(got, "data:image/svg+xml,<svg") || !strings.Contains(got, ">Agent<") || strings.Contains(got, "javascript:") {
		t.Errorf("the diagram is %.300s; want an SVG", got)
	}
	if n, blocks := p.count(lastTurn+" .diagram"), p.count(lastTurn+" pre.code"); n != 1 || blocks != 2 {
		t.Errorf("%d diagrams and %d blocks with sources; want 1 and 2", n, blocks)
	}
	if got := eval[string](p, "[...document.querySelectorAll('iframe.sandbox')].map((f) => f.getAttribute('sandbox') + ' ' + new URL(f.src).pathname).sort().join()"); got != "allow-scripts /diagram.html,allow-scripts /math.html" {
		t.Errorf("the frames are %s; want a sandbox for each", got)
	}
	p.seen("diagram")

	p.say("see [the session](session.go:3)")
	p.click(lastTurn + " button.link") // a relative path
	p.wants("#beside-title", "session.go")
}

// uses shows the use of tokens: of the conversation with the plan's limits, and of the
// host's other sessions on request.
func (p *page) uses() {
	p.t.Helper()
	p.click(".chat-head .menu summary")
	p.press(".chat-head .menu button", "Usage")
	p.wants("#usage .limits", "5 hours")
	p.wants("#usage .limits", "38 % used")
	p.wants("#usage .limits", "93 % used")
	if got := eval[string](p, "[...document.querySelectorAll('#usage [role=meter]')].map((m) => m.ariaValueNow + m.dataset.tone).join()"); got != "38,93bad" {
		p.t.Errorf("the meters show %s; want 38 and 93, the second as bad", got)
	}
	if bars, turns := p.count("#usage svg.bars g"), p.count("#turns > article"); bars != turns {
		p.t.Errorf("the chart has %d bars for %d turns", bars, turns)
	}
	p.wants("#usage", "of 128K tokens (")
	rows := "[...document.querySelectorAll('#usage tbody tr')].map((r) => r.firstChild.textContent).join('|')"
	if got := eval[string](p, rows); strings.Contains(got, "|Sessions|") || !strings.Contains(got, "|Models|") || !strings.Contains(got, "|Days|") {
		p.t.Errorf("the conversation's usage has the rows %s; want models and days, without sessions", got)
	}
	p.click("#usage-all")
	p.wants("#usage [role=status]", "The latest")
	got := eval[string](p, rows)
	for _, want := range []string{"Agents|Demo Agent|", "|Sessions|show everything|", "|Models|", "|Days|"} {
		if !strings.Contains(got, want) {
			p.t.Errorf("the use of all sessions has the rows %s; want %s", got, want)
		}
	}
	p.seen("usage")
	p.click("#usage [aria-label=Close]")
}

// approves answers the agent's permission requests.
func (p *page) approves() {
	p.t.Helper()
	p.say("edit")
	p.wants(lastTurn+" .diff .added", "func newSession(now time.Time)")
	p.wants(lastTurn+" .diff .removed", "func newSession()")
	p.wants(lastTurn+" .approval", "session_test.go")
	p.wants(lastTurn+" .risk", "Changes stay in the folder.")
	p.wants(lastTurn+" .answers.wider", "Allow in this Session")
	p.wants("#sessions [data-group=needs]", "show everything")
	p.until("a count in the title", patience, func() bool { return strings.HasPrefix(p.text("title"), "(1) ") })
	p.seen("approve-edit")
	p.click(lastTurn + " .answers.wider button")
	p.wants(lastTurn+" .parts", "Done, as you allowed.")
	p.wants(lastTurn+" .tool", "Answered: Allow in this Session")

	// A dangerous request needs a hold.
	p.say("danger")
	p.wants(lastTurn+" .risk.danger", "deletes everything")
	p.seen("approve-danger")
	p.whilePressed(lastTurn+" .question button.hold", func() { p.wants(lastTurn+" .parts", "Done, as you allowed.") })
}

// looks views the agent's changes and its terminal.
func (p *page) looks() {
	p.t.Helper()
	p.click("[aria-label=Work] .chip")
	p.wants("#beside .diff", "func newSession(now time.Time)")
	p.wants("#beside", "2 files, 0 looked at")
	p.holds("the lines of a difference side by side to be one line high", `document.querySelector("#beside .diff.sides .pair")?.getBoundingClientRect().height < 40`)
	p.seen("changes")
	p.do(forms[2].size)
	p.holds("long changed lines to wrap on a tablet", `getComputedStyle(document.querySelector("#beside .diff:not(.sides) .code")).whiteSpace === "pre-wrap"`)
	p.do(forms[0].size)
	p.click("#beside .edit:first-child input[type=checkbox]")
	p.wants("#beside", "2 files, 1 looked at")
	p.click("#beside .edit:last-child button")
	p.wants("dialog[open]", "This gives session_test.go the content that it had before.")
	p.click("#confirm-yes")
	p.wants("#beside", "Reverted.")
	p.wants("#beside", "1 file,")
	p.press("#beside .changes > .row button", "Create Pull Request") // the host names the page that it has made
	p.holds("a link to the pull request", "document.querySelector('#beside a.button')?.href === 'https://example.com/pulls/1'")
	p.enter("#commit-message", "Sessions end")
	p.click("#beside .changes > .row button")
	p.wants("#beside", "Committed: Sessions end")
	p.wants("#beside", "0 files")
	p.click("#beside-hide")

	p.say("terminal")
	p.wants(lastTurn+" .parts", "Terminal done.")
	p.click(lastTurn + " .tool summary")
	p.click(lastTurn + " .tool .chip")
	f := p.newFrame("/terminal.html", "document.body.dataset.printed > 0")
	f.wants(".xterm-rows", "hello from the terminal")
	if got := eval[string](f, "self.origin"); got != "null" {
		p.t.Errorf("the terminal's origin is %s; want null", got)
	}
	p.holds("the keys", `document.querySelector("#beside .keys button:nth-child(3)")`)
	if p.shows("#beside .keys") {
		p.t.Error("a desktop, which has a keyboard, shows keys")
	}
	p.seen("terminal")
	eval[any](p, "history.back()") // like a phone's back button
	p.until("the terminal to be hidden", patience, func() bool { return p.count("#beside") == 0 && p.count("#composer") == 1 })

	// Attach one of the session's files to a message.
	p.click("[data-kind=files]")
	p.wants("#beside .files", "session.go")
	p.seen("files")
	p.click("#beside .files li:last-child button")
	p.wants("#beside pre.file", "func newSession")
	p.click("#beside .beside-body .row button:nth-child(2)")
	p.wants("#composer .pictures", "session.go")
	p.click("#composer .pictures button")
}

// forks continues from a turn in a new chat, and deletes later turns.
func (p *page) forks() {
	p.t.Helper()
	turns := p.count("#turns > article")
	p.click("#turns > article:nth-child(2) .foot .menu summary")
	p.click("#turns > article:nth-child(2) .menu-items button")
	p.until("another chat, with two turns", patience, func() bool { return p.count("#turns > article") == 2 && p.count(".chat-chip") == 2 })
	p.click(".chat-chip")
	p.until("the first chat", patience, func() bool { return p.count("#turns > article") == turns })
	// The fork keeps its first words as a name after the page has left it.
	p.holds("the fork's name", `[...document.querySelectorAll(".chat-chip")].map((c) => c.textContent).join() === "show everything,show everything"`)
}

// servers switches a session's MCP server off and on, stops and starts it, and signs
// in.
func (p *page) servers() {
	p.t.Helper()
	state := func(want string) {
		p.t.Helper()
		p.await(`[data-server=mcp-tasks][data-state="` + want + `"]`)
	}
	p.click("[data-kind=servers]")
	state("ready")
	p.holds("the server's icon", "document.querySelector('[data-server=mcp-tasks] img.icon').naturalWidth > 0")
	p.click("#beside .paste summary")
	p.wants("#beside .tools-of", "add_task")
	p.seen("servers")
	p.click("#beside [data-do=stop]")
	state("stopped")
	p.click("#beside [data-do=start]")
	state("ready")
	p.click("#beside [role=switch]")
	state("off")
	p.click("#beside [role=switch]")
	state("ready")
	p.say("mcp auth required")
	state("authRequired")
	p.wants("[data-kind=servers] .badge", "sign in")
	p.wants("#beside", "Sign in to use these tasks.")
	p.pastes("#beside .primary", agenthost.DemoMCPToken)
	state("ready")
	p.click("#beside-hide")
}

// asks answers the agent's questions.
func (p *page) asks() {
	p.t.Helper()
	p.say("ask")
	p.wants(lastTurn+" .ask", "What is the branch called?")
	p.wants(lastTurn+" .ask", "Name is still needed.")
	p.seen("ask")
	if eval[bool](p, "!document.querySelector('.ask button.primary').disabled") {
		p.t.Error("an incomplete answer can be sent; want the button disabled")
	}
	p.enter(lastTurn+" #q-name", "clock")
	p.click(lastTurn + " .field:last-of-type .option:first-child input")
	p.click(lastTurn + " .ask button.primary")
	p.wants(lastTurn+" .parts", `You answered: accept {"name":{"state":"submitted","value":{"kind":"text","value":"clock"}},"race":{"state":"submitted","value":{"kind":"boolean","value":true}},`+
		`"runs":{"state":"submitted","value":{"kind":"number","value":500}},"what":{"state":"submitted","value":{"kind":"selected-many","value":["cart"]}},"where":{"state":"submitted","value":{"kind":"selected","value":"here"}}}`)
	p.wants(lastTurn+" .ask.answered", "Runs: 500")
	p.say("ask choice")
	p.wants(lastTurn+" .ask", "How shall I go on?")
	p.seen("ask-choice")
	p.click(lastTurn + " .ask .option:nth-child(2)")
	p.wants(lastTurn+" .parts", `"value":"step"`)
	p.say("plan")
	p.wants(lastTurn+" .plan", "Run the test 500 times.")
	p.seen("plan")
	p.enter(lastTurn+" .ask textarea", "Only 100 runs")
	p.click(lastTurn + " .ask .answers button:first-child")
	p.wants(lastTurn+" .parts", `You answered: accept {"how":{"state":"submitted","value":{"freeformValues":["Only 100 runs"],"kind":"selected","value":""}}}`)
	p.say("ask url")
	p.wants(lastTurn+" .ask a", "Open example.com")
	p.click(lastTurn + " .ask .answers button:last-child")
	p.wants(lastTurn+" .parts", "You answered: decline")
	p.do(forms[1].size)
	p.say("ask")
	p.wants(lastTurn+" .ask", "What is the branch called?")
	begins := `((ask, log) => ask.offsetHeight > log.clientHeight && Math.abs(ask.getBoundingClientRect().top - log.getBoundingClientRect().top) < 24)(document.querySelector(` + js(lastTurn+" .ask") + `), document.querySelector("#log"))`
	p.holds("a form higher than the screen to begin at its top", begins)
	eval[any](p, `document.querySelector("#turns").firstElementChild.style.paddingBottom = "100px"; null`)
	p.holds("a form to stay at its top while an earlier turn grows", begins)
	p.click(lastTurn + " .ask .answers button:last-child")
	p.wants(lastTurn+" .parts", "You answered: decline")
	p.do(forms[0].size)
}

// queues sends messages while the agent works: queued and steering.
func (p *page) queues() {
	p.t.Helper()
	p.say("stream 100000 20")
	p.await("#stop")
	p.enter("#prompt", "hello")
	p.click("#send")
	p.wants(".waiting", "hello")
	p.enter("#prompt", "be brief")
	p.seen("queue")
	p.click("#steer")
	p.wants(lastTurn+" .parts", "I have read: be brief")
	p.click("#stop")
	p.wants(lastTurn+" .prompt", "hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	if p.shows(".waiting") {
		p.t.Error("a sent message is shown as waiting; want it gone")
	}
}

// chooses uses two of the page's own lists by keyboard: the list that completes a field,
// and the list in place of a native select. Escape closes a list, and leaves its dialog open.
func (p *page) chooses() {
	p.t.Helper()
	at := func(id string) string {
		return eval[string](p, "(e => [e.dataset.value ?? e.value, e.getAttribute('aria-expanded'), document.getElementById(e.getAttribute('aria-activedescendant'))?.textContent ?? '', document.activeElement.id].join('|'))(document.querySelector('#"+id+"'))")
	}
	wants := func(id, want string) {
		p.t.Helper()
		p.until(id+" to be "+want, patience, func() bool { return at(id) == want })
	}
	first := eval[string](p, "document.querySelector('#new-model').dataset.value")
	p.keys("#new-model", kb.ArrowDown)
	wants("new-model", first+"|true|The agent’s choice|new-model")
	p.settles()
	p.accessible("an open list")
	if pictures {
		p.save("select-desktop-light") // a different size closes the list
	}
	p.do(chromedp.KeyEvent(kb.End), slowKey(kb.Enter))
	p.until("the last model", patience, func() bool {
		return strings.HasSuffix(at("new-model"), "|false||new-model") && !strings.HasPrefix(at("new-model"), "|")
	})
	p.do(chromedp.KeyEvent("t")) // the first characters of an option
	wants("new-model", "|false||new-model")

	p.enter("#new-folder", "/demo/s")
	p.await("#new-folder-list")
	p.do(chromedp.KeyEvent(kb.Escape))
	p.holds("the list to be closed", "!document.querySelector('#new-folder-list')")
	if !p.shows("#new") {
		p.t.Error("Escape closes the dialog with its list; want only the list closed")
	}
	p.enter("#new-folder", "/demo/s")
	p.do(chromedp.KeyEvent(kb.ArrowDown))
	wants("new-folder", "/demo/s|true|/demo/shop|new-folder")
	p.click("#new-folder-list li")
	wants("new-folder", "/demo/shop|false||new-folder")
}

// TestHostileTextStaysText lets a host send hostile and large text: nothing runs, leaves
// the page or becomes markup.
func TestHostileTextStaysText(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	p.hostile = true
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	eval[any](p, `window.loaded = []; new PerformanceObserver((l) => window.loaded.push(...l.getEntries().map((e) => e.name))).observe({type: 'resource'}); null`)
	p.say("hostile")
	p.wants(lastTurn+" .parts > .raw", "onerror")
	p.until("the end", patience, func() bool { return p.count("#stop") == 0 })
	p.settles()
	for what, bad := range map[string]string{
		"a script ran":                  "window.owned !== undefined",
		"an element can run something":  "[...document.querySelectorAll('#turns *')].some((e) => [...e.attributes].some((a) => a.name.startsWith('on')))",
		"there is a script":             "document.querySelector('#turns script, #turns style, #turns form, #turns iframe, #turns svg:not(.icon), #turns object') !== null",
		"something was taken as styled": "document.querySelector('#turns [style]') !== null",
		"a link leads to a script":      "[...document.querySelectorAll('#turns a[href]')].some((a) => !/^https?:|^mailto:/.test(a.href))",
		"a link keeps its opener":       "[...document.querySelectorAll('#turns a[href]')].some((a) => a.target !== '_blank' || !a.relList.contains('noopener'))",
		"an id was taken":               "document.querySelectorAll('#prompt').length !== 1 || document.querySelectorAll('.composer').length !== 1",
		"something was loaded":          "window.loaded.some((n) => !n.startsWith(location.origin) && !n.startsWith('data:'))",
		"a button is covered":           "(b => document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2)?.closest('#send, #prompt') === null)(document.querySelector('#prompt').getBoundingClientRect())",
	} {
		if eval[bool](p, bad) {
			t.Error(what)
		}
	}
	p.shot("hostile")
	p.many()
}

// many opens a long chat and many sessions: only rows near the visible part are drawn.
func (p *page) many() {
	p.t.Helper()
	p.begin()
	p.say("history 5000")
	p.say("sessions 900")
	p.wants(lastTurn+" .prompt", "sessions 900")
	p.wants("#sessions h2:last-of-type .dim", "")
	p.until("many sessions", patience, func() bool { return strings.Contains(p.text("#sessions"), "Session 1") })
	if n := p.count("#sessions li"); n > 100 {
		p.t.Errorf("%d sessions are in the page; want at most 100", n)
	}
	if n := p.count("#turns > article"); n > 21 {
		p.t.Errorf("%d turns are drawn; want at most 21", n)
	}
	p.enter("#search", "session 777")
	p.until("the one session", patience, func() bool {
		return p.count("#sessions li") == 1 && strings.Contains(p.text("#sessions"), "Session 777")
	})

	// After a reload the chat starts at its end, and scrolls back as far as wanted.
	p.do(chromedp.Reload())
	p.wants(lastTurn+" .prompt", "sessions 900")
	first := func() string { return p.text("#turns > article .prompt .text") }
	for n := 0; n < 4; n++ {
		before := first()
		p.click("#earlier")
		p.until("earlier turns", patience, func() bool { return first() != before })
	}
	if n := p.count("#turns > article"); n > 60 {
		p.t.Errorf("%d turns are in the page far from the end; want at most 60", n)
	}
	linked := eval[string](p, "document.querySelector('#turns > article').dataset.turn")
	// At the end, and at the top of the list, far rows leave the document.
	p.click("#to-end")
	p.until("the turns near the end alone", patience, func() bool { return p.count("#turns > article") <= 20+1 })
	p.holds("the conversation to have the focus of the button, which is gone", "document.activeElement.id === 'log'")

	// A link leads to an early turn and is then used up.
	eval[any](p, fmt.Sprintf(`location.hash += "&turn=" + encodeURIComponent(%q); null`, linked))
	p.until("the turn of a link", patience, func() bool { return eval[string](p, "document.activeElement.dataset.turn ?? ''") == linked })
	if got := eval[string](p, "location.hash"); strings.Contains(got, "turn=") {
		p.t.Errorf("the address keeps the turn: %s; want it removed", got)
	}
	p.click("#to-end")

	// Every session is reachable by keyboard, only near rows are in the document, and
	// the focused row stays, also when its session ends its work and moves to another
	// group.
	p.say("stream 100000 20")
	p.await("#stop")
	p.await("#sessions [data-group=works] li button")
	eval[any](p, `document.querySelector("#sessions [data-group=works] li button").focus(); document.querySelector("#sessions").scrollTo(0, 1e6); null`)
	focused := func(after string) {
		p.t.Helper()
		if at := eval[string](p, `document.activeElement.closest("#sessions li") ? "" : document.activeElement.outerHTML.slice(0, 200)`); at != "" {
			p.t.Errorf("%s, the focus is at %s; want the focused row kept", after, at)
		}
	}
	p.until("the last sessions", patience, func() bool {
		return eval[bool](p, `(() => { const li = [...document.querySelectorAll("#sessions li[data-session]")].at(-1); return li.getAttribute("aria-posinset") === li.getAttribute("aria-setsize"); })()`)
	})
	if n := p.count("#sessions li"); n > 100 {
		p.t.Errorf("%d sessions are in the page; want at most 100", n)
	}
	focused("after a scroll")
	eval[any](p, `((row) => { document.querySelector("#stop").click(); row.focus({ preventScroll: true }); })(document.activeElement); null`)
	p.holds("no session to work", `document.querySelector("#sessions [data-group=works]") === null`)
	focused("after the end of the session's work")
	eval[any](p, `document.querySelector("#sessions").scrollTo(0, 0); null`)
	p.until("the first sessions", patience, func() bool {
		return eval[bool](p, `document.querySelector("#sessions li[data-session]").getBoundingClientRect().top < innerHeight`)
	})
}
