package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
)

// sealedDeltas is the number of words in a turn.
const sealedDeltas = 500

// sealedConsole measures how long the console works for each word of an answer, with a
// phone's screen and a slowed processor.
func sealedConsole(b *testbed) ([]Figure, error) {
	if b.o.Tiny {
		return nil, nil // tests may run without a browser
	}
	host, err := b.demoHost()
	if err != nil {
		return nil, err
	}
	p, err := b.sealedWays("console", false, "ws://"+host)
	if err != nil {
		return nil, err
	}
	defer p.end()
	var pages [2]*browser
	for i := range pages {
		if pages[i], err = b.browser(); err != nil {
			return nil, err
		}
		defer pages[i].close()
		if err := p.open(pages[i], i); err != nil {
			return nil, fmt.Errorf("%s: %w", sealedNames[i], err)
		}
	}
	var work [2]series
	err = b.rounds(func(round int) error {
		for turn := range 2 {
			for j := range pages { // in every other turn, each way is measured first
				i := (turn + j) % 2
				took, err := pages[i].deltaWork(fmt.Sprintf("talk %d", sealedDeltas+2*round+turn))
				if err != nil {
					return fmt.Errorf("%s: %w", sealedNames[i], err)
				}
				work[i] = append(work[i], took)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("console, %d× slower processor: script and layout for a delta", slowdown)
	return []Figure{
		newFigure(name, "ms", work[1]).beside(unsealedName, work[1], work[0]).want(ratioAtMost(1.3)).means("Words come as smoothly from a sealed host."),
	}, nil
}

// open opens the console for way i, and pairs the page with the host if the host is
// sealed.
func (p *pairOfWays) open(b *browser, i int) error {
	s := p.sites[i]
	slow := func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		if _, err := cdp.Call(ctx, target, performance.Enable, performance.EnableParams{}); err != nil {
			return chromedp.Void{}, err
		}
		return cdp.Call(ctx, target, emulation.SetCPUThrottlingRate, emulation.SetCPUThrottlingRateParams{Rate: slowdown})
	}
	phone := chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile)
	address := s.url() + "/#" + url.Values{"host": {hostName(0)}, "token": {p.ways[i].tokens[0]}}.Encode()
	if err := chromedp.Do(b.ctx, phone, slow, chromedp.Navigate(address)); err != nil {
		return err
	}
	if s.cfg.sealed {
		if err := p.pairPage(b, s); err != nil {
			return err
		}
	}
	return b.until(`[...document.querySelectorAll("#sessions li")].length > 0`)
}

// pairPage pairs a page with its host by a code.
func (p *pairOfWays) pairPage(b *browser, s *site) error {
	code, err := s.code(b.ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		b.until(`document.querySelector("[data-pair]") !== null`),
		b.do(`document.querySelector("[data-pair]").click()`, `document.querySelector("#pair-code") !== null && document.querySelector("#pair button[type=submit]")?.disabled === false`),
		b.do(fmt.Sprintf(`(() => {
			const at = document.querySelector("#pair-code");
			at.value = %q;
			at.dispatchEvent(new Event("input", {bubbles: true}));
			setTimeout(() => document.querySelector("#pair button[type=submit]").click(), 100);
		})()`, code.Code), `(document.querySelector("#host-words")?.textContent ?? "…") !== "…"`),
		s.confirm(b.ctx),
	)
}

// deltaWork makes the agent stream in a new session. It returns how long the page works
// for each delta, in ms.
func (b *browser) deltaWork(prompt string) (float64, error) {
	err := errors.Join(
		b.do(`document.querySelector("#new-session").click()`, `document.querySelector("#create") !== null`),
		b.do(`document.querySelector("#create").click()`, `document.querySelector("#composer") !== null`),
	)
	if err != nil {
		return 0, err
	}
	before, err := b.worked()
	if err != nil {
		return 0, err
	}
	if err := errors.Join(b.say(prompt), b.until(`document.querySelector("#stop") !== null`), b.untilEach(200*time.Millisecond, `document.querySelector("#stop") === null`)); err != nil {
		return 0, err
	}
	after, err := b.worked()
	if err != nil {
		return 0, err
	}
	return (after - before) * 1000 / sealedDeltas, b.do(`document.querySelector("#back").click()`, `(document.querySelector("#turns")?.children.length ?? 0) === 0`)
}

// worked returns how long the page has worked on scripts, styles and layout so far, in
// seconds.
func (b *browser) worked() (total float64, err error) {
	metrics, err := chromedp.Run(b.ctx, func(ctx context.Context, target *chromedp.Target) (*performance.GetMetricsResult, error) {
		got, err := cdp.Call(ctx, target, performance.GetMetrics, cdp.Empty{})
		return &got, err
	})
	if err != nil {
		return 0, err
	}
	for _, m := range metrics.Metrics {
		switch m.Name {
		case "ScriptDuration", "LayoutDuration", "RecalcStyleDuration":
			total += m.Value
		}
	}
	return total, nil
}
