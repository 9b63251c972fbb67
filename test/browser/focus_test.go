//go:build !race

package browser_test

import (
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
