package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// sealedDeltas is the number of words in a turn.
const sealedDeltas = 500

// sealedConsole measures how long the console works for each word of an answer, with a
// phone's screen and a slowed processor.
func sealedConsole(b *testbed) []Figure {
	if b.o.Tiny {
		return nil // tests may run without a browser
	}
	p := b.sealedWays("console", false, b.demoHost(must.Get(procs.FreeAddress())))
	defer p.end()
	var pages [2]*browser
	for i := range pages {
		pages[i] = b.browser()
		defer pages[i].close()
		must.Within(sealedNames[i], func() { p.open(pages[i], i) })
	}
	var work [2]series
	b.rounds(func(int) {
		b.inTurns(2, func(i int) {
			must.Within(sealedNames[i], func() {
				work[i] = append(work[i], pages[i].deltaWork(fmt.Sprintf("talk %d", sealedDeltas+len(work[i]))))
			})
		})
	})
	name := fmt.Sprintf("console, %d× slower processor: script and layout for a delta", slowdown)
	return []Figure{
		newFigure(name, "ms", work[1]).beside(unsealedName, work[1], work[0]).want(ratioAtMost(1.3)).means("Words come as smoothly from a sealed host."),
	}
}

// open opens the console for way i, and pairs the page with the host if the host is
// sealed.
func (p *pairOfWays) open(b *browser, i int) {
	s := p.sites[i]
	metrics := func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		return cdp.Call(ctx, target, performance.Enable, performance.EnableParams{})
	}
	must.Do(chromedp.Do(b.ctx, phoneScreen, metrics, slowed(slowdown), chromedp.Navigate(s.console(p.ways[i].tokens[0]))))
	if s.cfg.sealed {
		p.pairPage(b, s)
	}
	b.until(`[...document.querySelectorAll("#sessions li")].length > 0`)
}

// pairPage pairs a page with its host by a code.
func (p *pairOfWays) pairPage(b *browser, s *site) {
	code := s.code(b.ctx)
	b.until(`document.querySelector("[data-pair]") !== null`)
	b.do(`document.querySelector("[data-pair]").click()`, `document.querySelector("#pair-code") !== null && document.querySelector("#pair button[type=submit]")?.disabled === false`)
	b.enter("#pair-code", code.Code, "#pair button[type=submit]", `(document.querySelector("#host-words")?.textContent ?? "…") !== "…"`)
	s.confirm(b.ctx)
}

// deltaWork makes the agent stream in a new session. It returns how long the page works
// for each delta, in ms.
func (b *browser) deltaWork(prompt string) float64 {
	b.newSession()
	before := b.worked()
	b.say(prompt)
	b.until(`document.querySelector("#stop") !== null`)
	b.untilEach(200*time.Millisecond, `document.querySelector("#stop") === null`)
	after := b.worked()
	b.back()
	return (after - before) * 1000 / sealedDeltas
}

// worked returns how long the page has worked on scripts, styles and layout so far, in
// seconds.
func (b *browser) worked() (total float64) {
	metrics := must.Get(chromedp.Run(b.ctx, func(ctx context.Context, target *chromedp.Target) (performance.GetMetricsResult, error) {
		return cdp.Call(ctx, target, performance.GetMetrics, cdp.Empty{})
	}))
	for _, m := range metrics.Metrics {
		switch m.Name {
		case "ScriptDuration", "LayoutDuration", "RecalcStyleDuration":
			total += m.Value
		}
	}
	return total
}
