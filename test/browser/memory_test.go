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

// The browser's own kinds in a heap snapshot. They grow without the page's doing: compiled
// code with each call, and entries about long tasks with each frame.
var browsersOwn = map[string]bool{"code": true, "native": true, "object shape": true, "hidden": true}

// heldByPage returns how many bytes the page's objects, texts and lists have after a
// garbage collection. Each node in the document has such an object.
func (p *page) heldByPage() (bytes int) {
	p.t.Helper()
	var text strings.Builder
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	must(p.t, chromedp.Listen(ctx, func(event any) {
		if chunk, ok := event.(*heapprofiler.EventAddHeapSnapshotChunk); ok {
			text.WriteString(chunk.Chunk) // all chunks come before the answer
		}
	}))
	p.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, heapprofiler.TakeHeapSnapshot, heapprofiler.TakeHeapSnapshotParams{})
		return chromedp.Void{}, err
	})
	p.do() // events before this have been handled
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

// TestLongAnswersLeaveNoMemoryBehind streams an answer in 1,200 pieces, and leaves the
// session. Of these, the page keeps only the text, to show it without a network.
func TestLongAnswersLeaveNoMemoryBehind(t *testing.T) {
	t.Parallel()
	// The text has 8,000 bytes. The smallest object has 28, so one for each piece would add 33,600.
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
	before := after("talk 600") // loads what a first answer needs
	eval[any](p, "location.hash = "+js(session)+", null")
	p.await("#prompt")
	if grown := after("talk 1200") - before; grown > most {
		t.Errorf("the page has kept %d bytes; want at most %d", grown, most)
	} else {
		t.Logf("the page has kept %d bytes", grown)
	}
}
