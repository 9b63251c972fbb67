//go:build !race

package browser_test

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestMovedRowKeepsTheFocus focuses the row of a session that works. When the turn ends, the row
// moves to a different group of the list, as a new element. It must have the focus there.
func TestMovedRowKeepsTheFocus(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	p.say("stream 300 10")
	p.holds("the session to work", `document.querySelector("#sessions [data-group=works] li")`)
	eval[any](p, `document.querySelector("#sessions [data-group=works] li button").focus(); null`)
	p.holds("the session to be done", `!document.querySelector("#sessions [data-group=works] li")`)
	p.holds("the focus at the session", `document.activeElement.closest("#sessions [data-group=rests] li")`)
}

// TestMovedQuestionKeepsTheFocus focuses an answer in the row of a session that asks. When a
// different session that asks moves above the row, the answer must keep the focus.
func TestMovedQuestionKeepsTheFocus(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.begin()
	p.say("permission")
	p.wants(lastTurn+" .question", "Allow")
	first := eval[string](p, "location.href")
	p.begin()
	p.say("permission")
	p.wants(lastTurn+" .question", "Allow")
	p.begin()
	p.holds("two questions", `document.querySelectorAll("#sessions [data-group=needs] .answers button").length >= 2`)
	eval[any](p, `window.had = document.querySelector("#sessions [data-group=needs] li:first-child .answers button"); had.focus(); null`)
	second := newPage(t)
	second.do(desktop(), chromedp.Navigate(first+"&token="+s.token(time.Hour)))
	second.wants(lastTurn+" .question", "Allow")
	second.click(".chat-head .menu summary")
	second.press(".chat-head .menu button", "New chat")
	second.wants("#chat-note", "No messages yet.")
	second.say("hello")
	p.holds("the row to move", `document.querySelector("#sessions [data-group=needs] li:last-child").contains(had)`)
	p.holds("the focus at the answer", `document.activeElement === had`)
}
