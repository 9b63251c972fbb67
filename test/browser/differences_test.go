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
