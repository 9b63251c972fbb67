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

// The directory testdata/layout has a record for each state of the console, on desktop
// and phone: elements, order, boxes and colours. Fonts and browsers differ between
// machines. Therefore boxes are compared only on the machine that made the record, and
// the rest on each machine. make pictures makes new records.
const layouts = "testdata/layout"

// layoutScript describes the visible page, or the top dialog if one is open. In a
// conversation it describes only the last turn, and not a turn that still grows. It
// gives no vertical position, because each word can change it. The width of an element
// with digits, and of elements beside it, is left out.
const layoutScript = `(() => {
	const top = document.querySelector('dialog[open]') ?? document.body;
	const parts = 'h1, h2, h3, p, button, a, input:not([type=hidden]), textarea, select, summary, dialog, legend, label, article, section, iframe, pre, table, img, .badge, .chip, .risk, .sign-in, .item-card, .composer-row, .notice, .prompt';
	const frames = 'article, .sheet-body, .beside-body, #sessions, .side, .composer, .bar, .chat-head, dialog, body';
	const last = document.querySelector('#turns > :last-child');
	const grows = last?.classList.contains('live') && !last.querySelector('[data-ask]');
	const lines = [];
	for (const e of [top, ...top.querySelectorAll(parts)]) {
		if (grows && e.closest('#log') || e.closest('#turns') && !last.contains(e) || e.closest('.xterm, .app-frame, .copy-code, .foot')) continue; // a turn's footer is left out, because it shows a duration
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

// machineScript returns a text that differs between machines with different boxes.
const machineScript = `(() => {
	const g = document.createElement('canvas').getContext('2d');
	const wide = (font) => { g.font = font; return g.measureText('Hamburgefonstiv 0123 mmmiii').width.toFixed(2); };
	const version = /Chrom\w*\/(\d+)/.exec(navigator.userAgent)?.[1];
	const mono = getComputedStyle(document.documentElement).getPropertyValue('--mono');
	return [version, wide('16px ' + getComputedStyle(document.querySelector('.page')).fontFamily), wide('16px ' + mono), devicePixelRatio > 0].join(' ');
})()`

// overflows is a script that lists what a person could not see or press: elements that
// the screen cuts off, buttons below 44 px on a phone and 24 px elsewhere (WCAG 2.2,
// 2.5.5 and 2.5.8), placeholders with a contrast below 4.5, parts that scroll sideways
// without a shadow or fade at the edge, and a bar that takes more than two lines.
const overflows = `(() => {
	const top = document.querySelector('dialog[open]') ?? document.body;
	const phone = innerWidth < 740;
	const least = phone ? 43.5 : 24;
	const bad = [];
	const named = (e) => e.outerHTML.slice(0, 120);
	const light = (c) => { const [r, g, b] = c.match(/[\d.]+/g).map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
	const under = (e) => { const c = e ? getComputedStyle(e).backgroundColor : 'rgb(255, 255, 255)'; return /, 0\)$/.test(c) ? under(e.parentElement) : c; };
	if (document.scrollingElement.scrollWidth > innerWidth) bad.push('the page is wider than the screen');
	for (const e of top.querySelectorAll('button, input, select, textarea, summary, a.button, [role=option]')) {
		if (!e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || e.closest('.skip, .till-focus, .copy-code, .xterm')) continue;
		const box = e.getBoundingClientRect();
		const label = e.closest('label')?.getBoundingClientRect() ?? box;
		if (box.width === 0) continue;
		if (!e.closest('.chips, .diff, table, .wide') && (box.right > innerWidth + 1 || box.left < -1)) bad.push(named(e) + ' is beyond the side');
		if (!e.matches('.link') && (Math.max(label.width, box.width) < least || Math.max(label.height, box.height) < least)) bad.push(named(e) + ' is ' + Math.round(box.width) + '×' + Math.round(box.height));
		if (!e.placeholder || e.value) continue;
		const pen = getComputedStyle(e, '::placeholder');
		const [a, b] = [light(pen.color), light(under(e))].sort((x, y) => y - x);
		if (pen.opacity !== '1' || (a + .05) / (b + .05) < 4.5) bad.push(named(e) + ' has a placeholder with a contrast of ' + ((a + .05) / (b + .05)).toFixed(1));
	}
	for (const e of phone ? top.querySelectorAll('*') : []) {
		if (e.scrollWidth <= e.clientWidth + 1 || !e.checkVisibility()) continue;
		const s = getComputedStyle(e);
		if (/auto|scroll/.test(s.overflowX) && s.maskImage === 'none' && s.backgroundImage === 'none') bad.push(named(e) + ' scrolls sideways, and nothing shows it');
	}
	const bar = document.querySelector('.page > .bar')?.offsetHeight;
	if (phone && bar > 110) bad.push('the bar is ' + bar + ' high');
	return bad.join('\n');
})()`

// fits checks what overflows lists, in the page's present size.
func (p *page) fits(state string) {
	p.t.Helper()
	for bad := range strings.Lines(eval[string](p, overflows)) {
		p.t.Errorf("%s: an element does not fit: %s", state, bad)
	}
}

// keeping makes laidOut write records instead of comparing them.
var keeping = pictures

// A layoutLine is a line of a layout's record: an element and its box.
type layoutLine struct{ box, what string }

func layoutOf(text string) (lines []layoutLine) {
	for line := range strings.Lines(text) {
		box, what, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		lines = append(lines, layoutLine{box, what})
	}
	return lines
}

// laidOut compares a state's layout with its record, or writes the record.
func (p *page) laidOut(state, form string) {
	p.t.Helper()
	p.fits(state + " " + form)
	file := filepath.Join(layouts, state+"-"+form+".txt")
	machine := eval[string](p, machineScript)
	if keeping {
		keepLayouts(p.t)
		must(p.t, os.WriteFile(file, []byte(machine+"\n"+p.restingLayout()+"\n"), 0o644))
		return
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		p.t.Errorf("%v: run make pictures to store the layout", err)
		return
	}
	had, text, _ := strings.Cut(string(kept), "\n")
	// An element, such as a session's row, may still be moving. Therefore laidOut compares
	// until both are equal, or patience is over.
	why := ""
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if why = differs(layoutOf(text), layoutOf(eval[string](p, layoutScript)), had == machine); why == "" {
			return
		}
		if time.Now().After(end) || p.t.Failed() { // once a test has failed, further waiting gains nothing
			break
		}
	}
	p.t.Errorf("%s %s is laid out differently: %s\ncompare the pictures; make pictures stores the new layout", state, form, why)
}

// restingLayout waits until the layout has not changed for a second, and returns it.
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

// nearly is the number of pixels by which boxes may differ.
const nearly = 2

// differs describes how two layouts differ: by the first element that differs, or by
// all boxes that differ. It returns "" if the layouts are equal.
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

// nearBox reports whether two boxes, written as "x width height", are nearly equal.
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
