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
