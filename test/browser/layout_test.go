//go:build !race

package browser_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// How each state of the console is laid out is kept, for a desktop and a phone, in
// testdata/layout: what stands where, how large, and in which colours. Fonts and
// browsers differ from machine to machine, and boxes with them: so places and sizes
// are compared where both are those of the machine that has kept them, and what is
// there, in which order and colours, everywhere. make pictures keeps them anew.
const layouts = "testdata/layout"

// layoutScript describes what can be seen: what is above all else where there is a
// dialog, else the page. Of a conversation it is the last turn, unless that still
// grows. Of places, the order in which things stand says how high they are: how much stands above them
// is another with each word. What has a digit in it may be as
// wide as it likes, and so may what stands beside it in its line.
const layoutScript = `(() => {
	const top = document.querySelector('dialog[open]') ?? document.body;
	const parts = 'h1, h2, h3, p, button, a, input:not([type=hidden]), textarea, select, summary, dialog, legend, label, article, section, iframe, pre, table, img, .badge, .chip, .risk, .sign-in, .item-card, .composer-row, .notice, .prompt';
	const frames = 'article, .sheet-body, .beside-body, #sessions, .side, .composer, .bar, .chat-head, dialog, body';
	const last = document.querySelector('#turns > :last-child');
	const grows = last?.classList.contains('live') && !last.querySelector('[data-ask]');
	const lines = [];
	for (const e of [top, ...top.querySelectorAll(parts)]) {
		if (grows && e.closest('#log') || e.closest('#turns') && !last.contains(e) || e.closest('.xterm, .app-frame, .copy-code, .foot')) continue; // how long a turn took is in its foot
		if (!e.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
		const box = e.getBoundingClientRect();
		if (box.width < 2 || box.height < 2) continue;
		const frame = e.parentElement?.closest(frames);
		const from = frame?.getBoundingClientRect() ?? { left: 0 };
		const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join(' ').replace(/\s+/g, ' ').trim() || e.getAttribute('aria-label') || e.placeholder || '';
		const varies = /\d/.test(e.textContent) || /\d/.test(e.value ?? '') || [...(e.parentElement?.children ?? [])].some((s) => s !== e && /\d/.test(s.textContent) && s.getBoundingClientRect().top < box.bottom && s.getBoundingClientRect().bottom > box.top);
		const name = e.tagName.toLowerCase() + (e.id && !/\d/.test(e.id) ? '#' + e.id : '') + [...e.classList].map((c) => '.' + c).join('');
		const s = getComputedStyle(e);
		const holds = e.matches('article, section, dialog, li, body');
		lines.push([varies ? '*' : Math.round(box.left - from.left), varies ? '*' : Math.round(box.width), holds ? '*' : Math.round(box.height)].join(' ') + '\t' +
			name + ' ' + JSON.stringify(own.slice(0, 40).replace(/.*\d.*/, '#')) + ' ' + s.color.replaceAll(' ', '') + (s.backgroundColor === 'rgba(0, 0, 0, 0)' ? '' : ' on ' + s.backgroundColor.replaceAll(' ', '')));
	}
	return lines.join('\n');
})()`

// machineScript tells machines apart on which boxes differ.
const machineScript = `(() => {
	const g = document.createElement('canvas').getContext('2d');
	const wide = (font) => { g.font = font; return g.measureText('Hamburgefonstiv 0123 mmmiii').width.toFixed(2); };
	const version = /Chrom\w*\/(\d+)/.exec(navigator.userAgent)?.[1];
	const mono = getComputedStyle(document.documentElement).getPropertyValue('--mono');
	return [version, wide('16px ' + getComputedStyle(document.querySelector('.page')).fontFamily), wide('16px ' + mono), devicePixelRatio > 0].join(' ');
})()`

// overflows are what is cut off at the side of a phone, or is too small for a thumb
// (WCAG 2.2, 2.5.8: 24 px).
const overflows = `(() => {
	const top = document.querySelector('dialog[open]') ?? document.body;
	const bad = [];
	if (document.scrollingElement.scrollWidth > innerWidth) bad.push('the page is wider than the screen');
	for (const e of top.querySelectorAll('button, input, select, textarea, summary, a.button')) {
		if (!e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || e.closest('.skip, .till-focus, .copy-code, .chips, .hosts, .diff, table, .wide, .xterm')) continue;
		const box = e.getBoundingClientRect();
		const label = e.closest('label')?.getBoundingClientRect() ?? box;
		if (box.width === 0) continue;
		if (box.right > innerWidth + 1 || box.left < -1) bad.push(e.outerHTML.slice(0, 120) + ' is beyond the side');
		if (Math.max(label.width, box.width) < 24 || Math.max(label.height, box.height) < 24) bad.push(e.outerHTML.slice(0, 120) + ' is ' + Math.round(box.width) + '×' + Math.round(box.height));
	}
	return bad.join('\n');
})()`

// keeping says that layouts are to be kept anew.
var keeping = pictures

// A layoutLine is a line of a kept layout: place and size, and what is there.
type layoutLine struct{ box, what string }

func layoutOf(text string) (lines []layoutLine) {
	for line := range strings.Lines(text) {
		box, what, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		lines = append(lines, layoutLine{box, what})
	}
	return lines
}

// laidOut compares how a state is laid out with how it was, or keeps it.
func (p *page) laidOut(state, form string) {
	p.t.Helper()
	for bad := range strings.Lines(eval[string](p, overflows)) {
		p.t.Errorf("%s %s: %s", state, form, bad)
	}
	file := filepath.Join(layouts, state+"-"+form+".txt")
	machine := eval[string](p, machineScript)
	if keeping {
		keepLayouts(p.t)
		must(p.t, os.WriteFile(file, []byte(machine+"\n"+p.restingLayout()+"\n"), 0o644))
		return
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		p.t.Errorf("%v: make pictures keeps it", err)
		return
	}
	had, text, _ := strings.Cut(string(kept), "\n")
	// What was asked for may be there a moment later, such as the row of a session that has come to rest.
	why := ""
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if why = differs(layoutOf(text), layoutOf(eval[string](p, layoutScript)), had == machine); why == "" {
			return
		}
		if time.Now().After(end) || p.t.Failed() { // one is enough to wait for
			break
		}
	}
	p.t.Errorf("%s %s is not laid out as it was: %s\nmake pictures keeps it as it is now; look at the difference first", state, form, why)
}

// restingLayout is the layout once it has been the same for a second, for people who wait.
func (p *page) restingLayout() string {
	got := ""
	for n := 0; n < 10; time.Sleep(100 * time.Millisecond) {
		now := eval[string](p, layoutScript)
		if n++; now != got {
			got, n = now, 0
		}
	}
	return got
}

var keepLayouts = func() func(*testing.T) {
	var once sync.Once
	return func(t *testing.T) { once.Do(func() { must(t, os.MkdirAll(layouts, 0o755)) }) }
}()

// nearly is how many pixels are no difference.
const nearly = 2

// differs tells how two layouts differ, "" if they do not: by all boxes that do, or the
// first thing that is another.
func differs(had, got []layoutLine, sameMachine bool) string {
	var boxes strings.Builder
	for i := range max(len(had), len(got)) {
		switch {
		case i >= len(had):
			return fmt.Sprintf("there is %s more", got[i].what)
		case i >= len(got):
			return fmt.Sprintf("there is no %s", had[i].what)
		case had[i].what != got[i].what:
			return fmt.Sprintf("%s\n  is now %s", had[i].what, got[i].what)
		case sameMachine && !nearBox(had[i].box, got[i].box):
			fmt.Fprintf(&boxes, "\n%s\n  was at %s, and is at %s", had[i].what, had[i].box, got[i].box)
		}
	}
	return boxes.String()
}

// nearBox reports whether two boxes, as x width height, are nearly the same.
func nearBox(a, b string) bool {
	as, bs := strings.Fields(a), strings.Fields(b)
	if len(as) != len(bs) {
		return false
	}
	for i := range as {
		if as[i] == "*" || bs[i] == "*" {
			continue
		}
		var x, y int
		if _, err := fmt.Sscan(as[i], &x); err != nil {
			return false
		}
		if _, err := fmt.Sscan(bs[i], &y); err != nil {
			return false
		}
		if x-y > nearly || y-x > nearly {
			return false
		}
	}
	return true
}
