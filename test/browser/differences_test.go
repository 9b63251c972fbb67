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
