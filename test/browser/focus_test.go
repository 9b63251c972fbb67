//go:build !race

package browser_test

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// pressed focuses a button and presses it with the keyboard.
func (p *page) pressed(selector string) {
	p.t.Helper()
	p.await(selector)
	p.focus(selector)
	p.do(chromedp.KeyEvent("\r"))
}

// TestFocusStaysNearWhatHasGone presses buttons that leave the page with what they are
// about: the answer to a question, a queued message, and an attached file. The focus must
// go to the conversation or the editor, and not to the page.
func TestFocusStaysNearWhatHasGone(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	goes := func(what, selector, to string) {
		t.Helper()
		p.pressed(selector)
		p.holds(what+" to go", "!document.querySelector("+js(selector)+")")
		p.holds("the focus at "+to+" after "+what, "document.activeElement.id === "+js(to))
	}
	p.say("ask")
	goes("the question", lastTurn+" form.question .answers button:last-child", "log")
	p.say("permission")
	goes("the approval", lastTurn+" .approval .answers button:last-child", "log")
	p.say("stream 300 100")
	p.enter("#prompt", "next")
	p.click("#send")
	goes("the queued message", ".waiting button", "log")
	eval[any](p, `(() => {
		const data = new DataTransfer();
		data.items.add(new File(['x'], 'note.txt'));
		document.querySelector('#composer').dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: data }));
	})(), null`)
	goes("the file", "#composer .pictures button", "prompt")
}

// TestMenuReturnsTheFocus closes a menu with Escape, and by a button that opens a dialog. When
// they are closed, the focus must be at the button that opens the menu.
func TestMenuReturnsTheFocus(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	const menu = ".chat-head .menu"
	returns := func() {
		t.Helper()
		p.holds("the menu to close", "!document.querySelector("+js(menu)+").open")
		p.holds("the focus at the menu's button", "document.activeElement.matches("+js(menu+" summary")+")")
	}
	opens := func() {
		t.Helper()
		p.pressed(menu + " summary")
		p.holds("the menu", "[...document.querySelectorAll("+js(menu+" button")+")].some((b) => b.textContent === 'Find' && (b.id = 'to-find'))")
	}
	opens()
	p.focus("#to-find")
	p.do(chromedp.KeyEvent(kb.Escape))
	returns()
	opens()
	p.pressed("#to-find")
	p.await("#find input")
	p.do(chromedp.KeyEvent(kb.Escape))
	returns()
}

// TestPaneReturnsTheFocus opens and hides a pane by keyboard, beside the session and in its place. The focus
// must then be at the chip that has opened the pane.
func TestPaneReturnsTheFocus(t *testing.T) {
	t.Parallel()
	p, _ := canvasPage(t, stackConfig{still: true})
	for _, pane := range []struct{ chip, title, hides string }{
		{"[data-kind=servers]", "beside-title", "#beside-hide"},
		{"#canvases .chip", "canvas-title", "#canvas-hide"},
	} {
		for _, wide := range []int64{1280, 800} {
			p.do(chromedp.EmulateViewport(wide, 800))
			p.pressed(pane.chip)
			p.holds("the focus in the pane", "document.activeElement.id === "+js(pane.title))
			p.pressed(pane.hides)
			p.holds("the focus at "+pane.chip, "document.activeElement.matches("+js(pane.chip)+")")
		}
	}
}

// TestAnswerIsWrittenOverADrop cuts the page's connection while a person writes an answer. The
// field must keep the focus, because a phone's keyboard closes without it, and take what is
// written meanwhile.
func TestAnswerIsWrittenOverADrop(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.say("ask text")
	const field, send = lastTurn + " form.question textarea", lastTurn + " form.question [type=submit]"
	p.enter(field, "before")
	p.drop(s, func() {
		p.holds("no way to answer", "document.querySelector("+js(send)+").disabled")
		p.do(characters(" after"))
	})
	p.holds("the whole answer", "document.querySelector("+js(field)+").value === 'before after'")
	p.holds("the focus in the field", "document.activeElement.matches("+js(field)+")")
	p.click(send)
	p.wants(lastTurn+" .parts", "before after")
}

// cutRings is a script that focuses each element of the page, or of its open dialog, and lists the
// elements without a whole ring: a part around them cuts it off, or there is none. A part that scrolls
// up and down cuts it off only at its sides.
const cutRings = `(() => {
	const bad = [];
	for (const e of (document.querySelector('dialog[open]') ?? document.body).querySelectorAll('button, a[href], input, textarea, summary, [tabindex="0"]')) {
		if (e.disabled || e.closest('.skip, .till-focus, .xterm, .composer-row') || !e.checkVisibility({ visibilityProperty: true })) continue;
		e.focus();
		const { outlineStyle, outlineOffset, outlineWidth } = getComputedStyle(e);
		const ring = e.getBoundingClientRect();
		if (document.activeElement !== e || ring.width === 0) continue;
		const by = parseFloat(outlineOffset) + parseFloat(outlineWidth) - .5;
		const named = e.outerHTML.slice(0, 120);
		if (outlineStyle === 'none') bad.push(named + ' has no ring');
		for (let a = e.parentElement; a !== document.body; a = a.parentElement) {
			const { overflowX, position } = getComputedStyle(a);
			const box = a.getBoundingClientRect();
			const left = box.left + a.clientLeft, top = box.top + a.clientTop;
			const beside = ring.left - by < left || ring.right + by > left + a.clientWidth;
			const above = a.scrollHeight <= a.clientHeight + 1 && (ring.top - by < top || ring.bottom + by > top + a.clientHeight);
			if (overflowX !== 'visible' && (beside || above)) bad.push(named + ' in ' + a.outerHTML.slice(0, 60));
			if (position === 'fixed') break;
		}
	}
	return bad.join('\n');
})()`

// TestFocusRingsAreWhole visits lists, chips and sheets by keyboard, on a desktop and on a phone. The
// ring of each element must be whole.
func TestFocusRingsAreWhole(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#sessions", "Fix the flaky login test")
	whole := func(state string) {
		t.Helper()
		for _, size := range []step{desktop(), phone()} {
			p.do(size, chromedp.KeyEvent("\t")) // a page shows rings to a keyboard
			p.settles()
			for cut := range strings.Lines(eval[string](p, cutRings)) {
				t.Errorf("%s: the ring of an element is not whole: %s", state, cut)
			}
		}
		p.do(desktop())
	}
	whole("the list")
	p.openSession("demo:/login")
	p.say("edit")
	p.await(lastTurn + " .answers button")
	whole("a session with a question")
	p.press(lastTurn+" .answers button", "Skip")
	p.wants(lastTurn+" .parts", "Then not.")
	p.click("[data-kind=files]")
	p.wants("#beside .files", "session.go")
	whole("files")
	p.click("#beside-hide")
	for _, sheet := range []string{"#status-open", "#bell"} {
		p.click(sheet)
		p.await("dialog[open]")
		whole(sheet)
		p.do(chromedp.KeyEvent(kb.Escape))
		p.holds("the sheet to close", "!document.querySelector('dialog[open]')")
	}
}

// TestEscapeClosesWhatIsOnTop presses Escape with a side pane open. It must close the uppermost of menu, sheet
// and pane, and nothing else. A text in the pane that is not finished keeps it open.
func TestEscapeClosesWhatIsOnTop(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	escape := func() {
		t.Helper()
		p.do(chromedp.KeyEvent(kb.Escape))
		p.settles()
	}
	for _, size := range []step{desktop(), phone()} {
		p.do(size)
		p.pressed("[data-kind=files]")
		p.wants("#beside .files", "session.go")
		eval[any](p, `dispatchEvent(new KeyboardEvent("keydown", {key: "k", ctrlKey: true}))`)
		p.await("#palette")
		escape()
		p.holds("only the sheet to close", "!document.querySelector('dialog[open]') && document.querySelector('#beside')")
		escape()
		p.holds("the pane to close", "!document.querySelector('#beside')")
	}

	p.do(desktop())
	p.pressed("[data-kind=files]")
	p.await("#beside .files")
	p.pressed(".chat-head .menu summary")
	p.await(".chat-head .menu button")
	escape()
	p.holds("only the menu to close", "!document.querySelector('.menu[open]') && document.querySelector('#beside')")
	p.enter("#prompt", "half a sentence")
	escape()
	p.settles()
	if !p.shows("#beside") {
		t.Error("Escape in a field with text closes the pane; want it open")
	}
}
