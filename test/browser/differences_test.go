//go:build !race

package browser_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// asksToWrite makes the agent ask for a permission with edits, given as JSON.
func (p *page) asksToWrite(edits ...string) {
	p.t.Helper()
	p.say(`approve {"invocationMessage":"Write","edits":{"items":[` + strings.Join(edits, ",") + `]}}`)
}

// blob returns a side of a FileEdit: a file with generated content.
func blob(bytes int) string {
	return fmt.Sprintf(`{"uri":"file:///demo/big","content":{"uri":"demo-blob:/%d"}}`, bytes)
}

// numbered returns a side of a FileEdit: a file with short lines, all different.
func numbered(lines int) string {
	var text strings.Builder
	for i := range lines {
		fmt.Fprintln(&text, i)
	}
	return `{"uri":"file:///demo/big","content":{"uri":"data:text/plain;base64,` + base64.StdEncoding.EncodeToString([]byte(text.String())) + `"}}`
}

// TestRoughDifferenceSaysSo shows a change of 10,000 lines into 10,000 others, which takes too long to
// compare. The page must say that it shows both texts uncompared.
func TestRoughDifferenceSaysSo(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	p.meets(startStackWith(t, stackConfig{still: true}))
	p.asksToWrite(`{"before":` + numbered(10_000) + `,"after":` + blob(640_000) + `}`)
	p.wants(approval+" .edit", "Too large to compare line by line")
	p.do(phone())
	p.fits("a change without a comparison")
}

// TestFoldedLinesAreCountedBesideTheAnswers asks for a permission with 1,000 new lines, of which the page
// folds 600, and one with a sixth file, which is folded. The page must count the folded lines beside the
// buttons until the user unfolds them.
func TestFoldedLinesAreCountedBesideTheAnswers(t *testing.T) {
	t.Parallel()
	const folded = approval + " .question .why"
	p := newPage(t)
	p.meets(startStackWith(t, stackConfig{still: true}))
	unfolded := func() {
		t.Helper()
		p.holds("no count of folded lines", "!document.querySelector("+js(folded)+") && document.querySelector("+js(allows)+")")
	}
	p.asksToWrite(`{"after":` + blob(64_000) + `}`)
	p.wants(folded, "600 changed lines are folded above.")
	p.await(allows)
	p.holds("room around the button that unfolds", "((button, edit) => button.x - edit.x > 6 && edit.bottom - button.bottom > 3)(..."+js([]string{approval + " .edit button", approval + " .edit"})+".map((s) => document.querySelector(s).getBoundingClientRect()))")
	p.press(approval+" .edit button", "Show 600 more lines")
	unfolded()
	p.click(allows)
	p.wants(lastTurn+" .parts", "Done, as you allowed.")

	edits := make([]string, 6)
	for i := range edits {
		edits[i] = `{"after":` + blob(128) + `}`
	}
	edits[5] = `{"after":` + blob(192) + `}`
	p.asksToWrite(edits...)
	p.wants(folded, "3 changed lines are folded above.")
	p.shot("approve-folded")
	const last = approval + " .edit:last-child"
	p.click(last + " summary")
	unfolded()
	p.click(last + " summary") // the user has seen it
	p.holds("the folded file", "!document.querySelector("+js(last+" details")+").open")
	p.settles()
	unfolded()
}

// TestLongDifferenceIsDrawnInParts unfolds 10,000 removed lines and 10,000 added ones, which are higher on a
// phone. The page must draw only those near the visible part, keep the place, and show each part after a
// scroll to it.
func TestLongDifferenceIsDrawnInParts(t *testing.T) {
	t.Parallel()
	const most = 200
	const diff = approval + " .diff"
	p := newPage(t)
	p.meets(startStackWith(t, stackConfig{still: true}))
	p.asksToWrite(`{"before":` + numbered(10_000) + `,"after":` + blob(640_000) + `}`)
	drawn := func() {
		t.Helper()
		p.settles()
		if n := p.count(diff + " .line"); n == 0 || n > most {
			t.Errorf("%d of 20000 lines are drawn; want at most %d", n, most)
		}
	}
	// inView finds a line whose whole height is visible in the difference.
	inView := func(kind string, line int) {
		t.Helper()
		p.holds(fmt.Sprint(kind, " line ", line, " in view"), fmt.Sprintf(`(d => [...d.querySelectorAll('.line.%s')].some((l) => l.querySelector('.no').textContent === '%d' &&
			l.getBoundingClientRect().top >= d.getBoundingClientRect().top - 1 && l.getBoundingClientRect().bottom <= d.getBoundingClientRect().bottom + 1))(document.querySelector(%s))`, kind, line, js(diff)))
	}
	scrolls := func(part string) {
		t.Helper()
		p.holds("a scroll to "+part+" of the height", "(d => { d.scrollTop = d.scrollHeight * "+part+"; return true; })(document.querySelector("+js(diff)+"))")
		p.settles()
	}
	scrolls("0")
	inView("removed", 1)
	drawn()
	scrolls("1")
	inView("removed", 400)
	p.press(approval+" .edit button", "Show 19,600 more lines")
	inView("removed", 400)
	drawn()
	for _, size := range []step{desktop(), phone()} {
		p.do(size)
		for _, part := range []string{"0", "0.5", "0.7"} {
			scrolls(part)
			drawn()
			p.holds("lines in the middle of the view", "(d => document.elementFromPoint(d.x + d.width / 2, d.y + d.height / 2).closest('.line'))(document.querySelector("+js(diff)+").getBoundingClientRect())")
		}
		scrolls("1")
		scrolls("1") // the first has measured the lines there
		inView("added", 10_000)
		drawn()
	}
}
