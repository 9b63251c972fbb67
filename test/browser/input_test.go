//go:build !race

package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Helpers for mouse and keyboard. A script on the page finds each element at the moment
// of the input, because each change of the page may replace elements.

// js returns a value as a JavaScript literal.
func js(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings always encode
	}
	return string(text)
}

// looks is a script that evaluates a condition for a second. It returns the first value
// that is not false, or null.
const looks = `new Promise((done) => {
	const end = performance.now() + 1000;
	let before; // conditions may store their last value here
	const look = () => {
		let found;
		try { found = (%s); } catch { /* not yet */ }
		if (found || performance.now() > end) done(found ? %s : null); else setTimeout(look, 25);
	};
	look();
})`

// holds waits until a JavaScript condition is true. An exception counts as false.
func (p *page) holds(what, condition string) {
	p.t.Helper()
	script := fmt.Sprintf(looks, condition, "true")
	p.until(what, patience, func() bool { return eval[*bool](p, script, chromedp.EvalAwaitPromise) != nil })
}

// aims is a script that returns the point at which to press an element, or null while
// the element is hidden, disabled, moving or covered. Until that press, the page
// ignores presses on every other element, because the element may have moved.
const aims = `((selector) => {
	const own = (at) => (e) => [e, ...(e.labels ?? [])].some((x) => x.contains(at));
	if (!window.aim) {
		window.aim = { selector: '' };
		for (const kind of ['pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click']) addEventListener(kind, (event) => {
			if (!aim.selector || !event.isTrusted) return;
			const e = document.querySelector(aim.selector);
			if (e && own(event.target)(e)) {
				aim.hit ||= kind === 'click';
				return;
			}
			aim.missed = event.target.outerHTML?.slice(0, 100) ?? 'the document';
			event.stopImmediatePropagation();
			event.preventDefault();
		}, { capture: true });
	}
	aim.selector = '';
	const e = document.querySelector(selector);
	const [box] = e && !e.disabled && e.checkVisibility() ? e.getClientRects() : [];
	const at = box && { x: box.x + box.width / 2, y: box.y + box.height / 2 };
	const rests = at && at.x === before?.x && at.y === before.y;
	before = at;
	Object.assign(aim, { hit: false, missed: '' });
	if (!rests) return null;
	const top = document.elementFromPoint(at.x, at.y);
	if (!top || !own(top)(e)) {
		e.scrollIntoViewIfNeeded();
		return null;
	}
	aim.selector = selector;
	return at;
})`

// pressed is a script that returns what the last press hit: "hit"; "missed" and the
// name of another element; "gone" if the page has navigated; "" if the page has
// received no event yet.
const pressed = `((aim) => {
	const said = !aim ? 'gone' : aim.hit ? 'hit' : aim.missed ? 'missed: ' + aim.missed : '';
	if (aim && said) aim.selector = '';
	return said;
})(window.aim)`

// click waits until an element is ready, and clicks it with the mouse. It tries again
// if the click has missed.
func (p *page) click(selector string) {
	p.t.Helper()
	aim := fmt.Sprintf(looks, aims+"("+js(selector)+")", "found")
	p.until("a click on "+selector, patience, func() bool {
		at := eval[*struct{ X, Y float64 }](p, aim, chromedp.EvalAwaitPromise)
		if at == nil {
			return false
		}
		if err := chromedp.Do(p.ctx, chromedp.MouseClickXY(at.X, at.Y)); err != nil && !navigated(err) {
			p.t.Fatalf("clicking %s: %v; want no error", selector, err)
		}
		said := eval[*string](p, fmt.Sprintf(looks, pressed, "found"), chromedp.EvalAwaitPromise)
		if said != nil && *said != "hit" && *said != "gone" {
			p.t.Logf("a click on %s %s", selector, *said)
		}
		return said != nil && (*said == "hit" || *said == "gone")
	})
}

// await waits until an element is visible, is enabled and does not move.
func (p *page) await(selector string) {
	p.t.Helper()
	place := fmt.Sprintf("(e => e && !e.disabled && e.checkVisibility() ? JSON.stringify(e.getBoundingClientRect()) : '')(document.querySelector(%s))", js(selector))
	p.holds(selector+" at rest", fmt.Sprintf("((now) => { const rests = now !== '' && now === before; before = now; return rests; })(%s)", place))
}

// whilePressed presses the mouse button on an element, runs meanwhile, and releases the
// button.
func (p *page) whilePressed(selector string, meanwhile func()) {
	p.t.Helper()
	p.await(selector)
	at := eval[struct{ X, Y float64 }](p, fmt.Sprintf("(b => ({ x: b.x + b.width / 2, y: b.y + b.height / 2 }))(document.querySelector(%s).getBoundingClientRect())", js(selector)))
	p.do(chromedp.MouseEvent(chromedp.MousePressed, at.X, at.Y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
	meanwhile()
	p.do(chromedp.MouseEvent(chromedp.MouseReleased, at.X, at.Y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
}

// swipes moves a finger over an element, from its middle to the left.
func (p *page) swipes(selector string) {
	p.t.Helper()
	p.await(selector)
	at := eval[input.TouchPoint](p, fmt.Sprintf("(b => ({ x: b.x + b.width / 2, y: b.y + b.height / 2 }))(document.querySelector(%s).getBoundingClientRect())", js(selector)))
	finger := func(kind input.DispatchTouchEventType, points ...*input.TouchPoint) step {
		return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			_, err := cdp.Call(ctx, target, input.DispatchTouchEvent, input.DispatchTouchEventParams{Type: kind, TouchPoints: append([]*input.TouchPoint{}, points...)})
			return err
		})
	}
	p.do(finger(input.DispatchTouchEventTypeTouchStart, &at))
	for _, by := range []float64{20, 60, 140} {
		to := at
		to.X -= by
		p.do(finger(input.DispatchTouchEventTypeTouchMove, &to))
	}
	p.do(finger(input.DispatchTouchEventTypeTouchEnd))
}

// press clicks, by a script, the first enabled element that matches the selector and
// has this text. It waits until there is one.
func (p *page) press(selector, text string) {
	p.t.Helper()
	p.holds(text+" in "+selector, fmt.Sprintf("(b => b && (b.click(), true))([...document.querySelectorAll(%s)].find((b) => !b.disabled && b.textContent === %s))", js(selector), js(text)))
}

// focus waits for an element and moves the focus to it.
func (p *page) focus(selector string) {
	p.t.Helper()
	p.await(selector)
	p.holds("the focus on "+selector, fmt.Sprintf("(e => { e.focus(); return document.activeElement === e; })(document.querySelector(%s))", js(selector)))
}

// keys moves the focus to an element and presses keys there.
func (p *page) keys(selector, keys string) {
	p.t.Helper()
	p.focus(selector)
	p.do(chromedp.KeyEvent(keys))
}

// slowKey holds a key for 200 ms, as a person does. When a person holds Enter on a
// button, the browser clicks the button even if the page has used the key.
func slowKey(key string) step {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		r, _ := utf8.DecodeRuneInString(key)
		for _, event := range kb.Encode(r) {
			if _, err := cdp.Call(ctx, target, input.DispatchKeyEvent, *event); err != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	})
}

// characters types text as a keyboard does. If the page uses a key itself, that key
// writes nothing.
func characters(text string) step {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		for _, r := range text {
			events := kb.Encode(r)
			down, up := *events[0], events[len(events)-1]
			down.Text = string(r)
			for _, event := range []input.DispatchKeyEventParams{down, *up} {
				if _, err := cdp.Call(ctx, target, input.DispatchKeyEvent, event); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// enter replaces a field's content by text. It types the last character and inserts the
// rest at once, as a suggestion would.
func (p *page) enter(selector, text string) {
	p.t.Helper()
	_, size := utf8.DecodeLastRuneInString(text)
	most, last := text[:len(text)-size], text[len(text)-size:]
	entered := fmt.Sprintf("(e => e && e.value === %s)(document.querySelector(%s))", js(text), js(selector))
	p.until(text+" in "+selector, patience, func() bool {
		p.focus(selector)
		p.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%s)?.select()", js(selector))), inserted(most), chromedp.KeyEvent(last))
		return eval[*bool](p, fmt.Sprintf(looks, entered, "true"), chromedp.EvalAwaitPromise) != nil
	})
}

// inserted returns a step that replaces the selection by text.
func inserted(text string) step {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.InsertText, input.InsertTextParams{Text: text})
		return err
	})
}
