//go:build !race

package browser_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/chromedp"
)

// browsersOwn lists kinds of objects in a heap snapshot that belong to the browser.
// They grow without the page: compiled code with each call, and records of long tasks
// with each frame.
var browsersOwn = map[string]bool{"code": true, "native": true, "object shape": true, "hidden": true}

// heldByPage collects garbage and returns how many bytes the page's own objects have. A
// node that stays in the document counts, because it has such an object.
func (p *page) heldByPage() (bytes int) {
	p.t.Helper()
	var text strings.Builder
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	must(p.t, chromedp.Listen(ctx, func(event any) {
		if chunk, ok := event.(*heapprofiler.EventAddHeapSnapshotChunk); ok {
			text.WriteString(chunk.Chunk) // the browser sends all pieces before its answer
		}
	}))
	p.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, heapprofiler.TakeHeapSnapshot, heapprofiler.TakeHeapSnapshotParams{})
		return chromedp.Void{}, err
	})
	p.do() // waits until the pieces have been handled
	var heap struct {
		Snapshot struct {
			Meta struct {
				Fields []string          `json:"node_fields"`
				Types  []json.RawMessage `json:"node_types"`
			} `json:"meta"`
		} `json:"snapshot"`
		Nodes []int `json:"nodes"`
	}
	must(p.t, json.Unmarshal([]byte(text.String()), &heap))
	meta := heap.Snapshot.Meta
	var types []string
	must(p.t, json.Unmarshal(meta.Types[0], &types))
	kind, size := slices.Index(meta.Fields, "type"), slices.Index(meta.Fields, "self_size")
	for node := range slices.Chunk(heap.Nodes, len(meta.Fields)) {
		if !browsersOwn[types[node[kind]]] {
			bytes += node[size]
		}
	}
	return bytes
}

// TestLongAnswersLeaveNoMemoryBehind lets an answer arrive in 1,200 pieces, and leaves
// the session. The page may keep the answer's text, for reading without a network, and
// no object for each piece.
func TestLongAnswersLeaveNoMemoryBehind(t *testing.T) {
	t.Parallel()
	// The text has 8,000 bytes. The smallest object has 28 bytes, so an object for each
	// piece would add 33,600 bytes.
	const most = 32_000
	p := newPage(t)
	s := startStackWith(t, stackConfig{still: true})
	p.do(forms[2].size, colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants("#sessions", "Fix the flaky login test")
	p.begin()
	session := eval[string](p, "location.hash")
	after := func(prompt string) int {
		t.Helper()
		p.say(prompt)
		p.await("#stop")
		p.holds("the end of the answer", "document.querySelector('#stop') === null")
		p.click("#back")
		p.await("#sessions [data-session]")
		p.settles()
		return p.heldByPage()
	}
	before := after("talk 200") // the first answer also loads code that stays
	eval[any](p, "location.hash = "+js(session)+", null")
	p.await("#prompt")
	if grown := after("talk 1200") - before; grown > most {
		t.Errorf("the page has kept %d bytes; want at most %d", grown, most)
	} else {
		t.Logf("the page has kept %d bytes", grown)
	}
}
