//go:build !race

package browser_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// browsers lists the names under which Chromium may be installed, and shells those of
// its build without a user interface. A shell needs less of the processors, but has no
// notifications.
var (
	browsers = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"}
	shells   = []string{"chromium-headless-shell", "chrome-headless-shell"}
)

// screenshots is the directory for pictures. People look at them; no test reads them.
const screenshots = "../../artifacts"

// A page is a browser's tab, frame or worker in a test.
type page struct {
	t   *testing.T
	ctx context.Context
	own cdp.BrowserContextID // browser context of the page; "": the default context

	top     *page  // the page that contains this frame; nil: not a frame
	hostile bool   // the page's content tries to break its policy, so complaints are expected
	expects string // a part of complaints by the browser that are expected
}

// errNoBrowser says that Chromium is not installed.
var errNoBrowser = fmt.Errorf("no Chromium on the PATH (looked for %s): the console is not tested", strings.Join(browsers, ", "))

// startBrowser starts the first of the named browsers that is installed, with a new
// profile and additional flags. The function end stops the browser and waits until it
// has ended.
func startBrowser(names []string, flags map[string]any, opts ...chromedp.ContextOption) (ctx context.Context, end func(), err error) {
	var path string
	for _, name := range names {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		return nil, nil, errNoBrowser
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("site-per-process", true), // the default of browsers with a user interface: a sandboxed frame is a target
		// Pages in the background must run like a page in the foreground.
		chromedp.Flag("disable-background-timer-throttling", true), chromedp.Flag("disable-renderer-backgrounding", true),
		chromedp.Flag("disable-backgrounding-occluded-windows", true),
		// Tests need no software-rendered animations and no spare renderers.
		chromedp.Flag("force-prefers-reduced-motion", true), chromedp.Flag("disable-extensions", true), chromedp.Flag("disable-default-apps", true),
		chromedp.Flag("disable-component-extensions-with-background-pages", true), chromedp.Flag("disable-breakpad", true), chromedp.Flag("mute-audio", true),
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess,Translate,MediaRouter,OptimizationHints,SegmentationPlatform"),
		chromedp.Flag("disable-dev-shm-usage", true), // containers have little shared memory
		// A page lives for seconds: optimizing its scripts takes longer than running them.
		chromedp.Flag("js-flags", "--no-maglev,--no-turbofan"),
	}
	for name, value := range flags {
		options = append(options, chromedp.Flag(name, value))
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...) // the profile's directory is removed when the browser ends
	ctx, _ = chromedp.NewContext(allocator, opts...)
	end = func() {
		_ = chromedp.Cancel(ctx)
		cancel()
	}
	if err := chromedp.Do(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return ctx, end, nil
}

// sharedBrowser is the browser for all tests that need no flags.
var sharedBrowser = sync.OnceValues(func() (context.Context, error) {
	ctx, end, err := startBrowser(slices.Concat(shells, browsers), nil)
	if err == nil {
		atEnd(func() error { end(); return nil })
	}
	return ctx, err
})

// newPage opens a page in a new browser context, which shares no cookies, storage or
// workers with other pages. Without a browser, it skips the test. The test fails if the
// page throws an exception or violates its policy.
func newPage(t *testing.T) *page {
	t.Helper()
	browser, err := sharedBrowser()
	if err != nil {
		noBrowser(t, err)
	}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel) // waits until the page is closed
	p := pageOf(t, ctx)
	p.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		return cdp.Call(ctx, target, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	})
	return p
}

// newBrowser is newPage in a separate browser with additional flags. Notifications and
// persistent storage work only there.
func newBrowser(t *testing.T, flags map[string]any) *page {
	t.Helper()
	ctx, end, err := startBrowser(browsers, flags, chromedp.WithErrorf(t.Logf))
	if err != nil {
		noBrowser(t, err)
	}
	t.Cleanup(end)
	return pageOf(t, ctx)
}

func noBrowser(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, errNoBrowser) {
		t.Skip(err)
	}
	t.Fatal(err)
}

func pageOf(t *testing.T, ctx context.Context) *page {
	t.Helper()
	p := &page{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.event); err != nil {
		t.Fatal(err)
	}
	p.own = chromedp.FromContext(ctx).BrowserContextID
	return p
}

// targets returns all pages, frames and workers in the page's browser context.
func (p *page) targets() (own []*target.Info, err error) {
	all, err := chromedp.Targets(p.ctx)
	for _, info := range all {
		if p.own == "" || info.BrowserContextID == p.own {
			own = append(own, info)
		}
	}
	return own, err
}

func (p *page) event(event any) {
	switch event := event.(type) {
	case *runtime.EventExceptionThrown:
		p.t.Errorf("the page has thrown an exception: %+v; want none", event.ExceptionDetails)
	case *cdplog.EventEntryAdded:
		// The browser also logs each refused connection, and tests expect those.
		if event.Entry.Source != cdplog.EntrySourceNetwork && !p.hostile && (p.expects == "" || !strings.Contains(event.Entry.Text, p.expects)) {
			p.t.Errorf("the browser's log has an entry from %s: %s; want none", event.Entry.Source, event.Entry.Text)
		}
	}
}

// A step is an action of the browser's driver on a page.
type step = chromedp.Action[chromedp.Void]

func (p *page) do(steps ...step) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

// eval returns the value of a JavaScript expression. If the page navigates before the
// browser has answered, the new document evaluates the expression.
func eval[T any](p *page, script string, opts ...chromedp.EvaluateOption) T {
	p.t.Helper()
	ask := chromedp.Evaluate[T](script, opts...)
	v, err := chromedp.Run(p.ctx, ask)
	for end := time.Now().Add(patience); navigated(err) && time.Now().Before(end); {
		v, err = chromedp.Run(p.ctx, ask)
	}
	if err != nil {
		p.t.Fatalf("running %s: %v; want no error", script, err)
	}
	return v
}

// navigated reports whether err means that the document was gone before it answered.
// Chromium reports this by messages without an error code.
func navigated(err error) bool {
	var refused *cdproto.Error
	return errors.As(err, &refused) && slices.ContainsFunc([]string{"navigated", "context was destroyed", "Cannot find context", "Cannot find default execution context", "Promise was collected"},
		func(words string) bool { return strings.Contains(refused.Message, words) })
}

// leave evaluates a script after which the frame navigates. An answer may be missing.
func (p *page) leave(js string) {
	p.t.Helper()
	if _, err := chromedp.Run(p.ctx, chromedp.Evaluate[any](js)); err != nil && !errors.Is(err, chromedp.ErrTargetDetached) && !navigated(err) {
		p.t.Fatalf("running %s: %v; want no error", js, err)
	}
}

// text returns the text of the first element that matches a selector, or "" without
// such an element.
func (p *page) text(selector string) string {
	p.t.Helper()
	return eval[string](p, "document.querySelector("+strconv.Quote(selector)+")?.textContent ?? ''")
}

// patience limits each wait that names no limit.
const patience = 2 * time.Minute

// until waits until holds returns true. It fails the test if that takes longer than
// within.
func (p *page) until(what string, within time.Duration, holds func() bool) {
	p.t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			cmp.Or(p.top, p).save("failed")
			p.t.Fatalf("waited %v for: %s; the title is %q, the status %q, the chat ends with %q",
				within, what, p.text("title"), p.text("#status"), tail(p.text("#log"), 300))
		}
	}
}

// wants waits until the first element that matches a selector contains a text.
func (p *page) wants(selector, want string) {
	p.t.Helper()
	p.holds(strconv.Quote(want)+" in "+selector, fmt.Sprintf("document.querySelector(%s).textContent.includes(%s)", js(selector), js(want)))
}

// openSession opens a session in the list by a script, because rows may move while a
// mouse clicks.
func (p *page) openSession(uri string) {
	p.t.Helper()
	p.holds("the session "+uri, "(b => { b.click(); return true; })(document.querySelector("+js(`[data-session="`+uri+`"] button`)+"))")
}

// begin creates a session with the page's defaults, and waits until it is open.
func (p *page) begin() {
	p.t.Helper()
	p.click("#new-session")
	p.click("#create")
	p.wants("#chat-note", "No messages yet.")
}

// hostIs opens the sheet of hosts, waits until it shows a host in a state, and closes
// it.
func (p *page) hostIs(host, state string) {
	p.t.Helper()
	p.click("#status-open")
	p.wants("#hosts [data-host="+host+"] .badge", state)
	p.click("#status-sheet [aria-label=Close]")
}

// say waits until the agent is idle, and then sends a prompt.
func (p *page) say(prompt string) {
	p.t.Helper()
	p.holds("the agent to rest", "document.querySelector('#stop') === null && document.querySelector('.turn.pending:not(:has(.error))') === null")
	p.enter("#prompt", prompt)
	p.click("#send")
	p.holds("the prompt to be sent", "(e => !e || e.value === '')(document.querySelector('#prompt'))")
}

// shot checks that a state of the console fits on a phone, if the page has that size. With
// pictures, shot also takes pictures of the state in all forms, and checks each form with
// axe-core. The page then has its former size again.
func (p *page) shot(name string) {
	p.t.Helper()
	if eval[bool](p, "innerWidth < 740 && document.querySelector('.page') !== null") {
		p.fits(name)
	}
	if !pictures {
		return
	}
	had := eval[struct {
		Wide, High  int64
		Scale       float64
		Touch, Dark bool
	}](p, `({Wide: document.documentElement.clientWidth, High: document.documentElement.clientHeight, Scale: devicePixelRatio,
		Touch: matchMedia('(pointer: coarse)').matches, Dark: matchMedia('(prefers-color-scheme: dark)').matches})`)
	for _, f := range forms {
		p.do(f.size, colours(f.colours))
		p.settles()
		p.accessible(name + " " + f.name)
		p.save(name + "-" + f.name)
	}
	size := []chromedp.EmulateViewportOption{chromedp.EmulateScale(had.Scale)}
	if had.Touch {
		size = append(size, chromedp.EmulateMobile)
	}
	scheme := "light"
	if had.Dark {
		scheme = "dark"
	}
	p.do(chromedp.EmulateViewport(had.Wide, had.High, size...), colours(scheme))
	p.settles()
}

func (p *page) save(name string) {
	p.t.Helper()
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.MkdirAll(screenshots, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(screenshots, "console-"+name+".png"), png, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func desktop() step { return chromedp.EmulateViewport(1280, 800) }

func phone() step {
	return chromedp.EmulateViewport(390, 780, chromedp.EmulateScale(2), chromedp.EmulateMobile)
}

// colours returns a step that sets the colour scheme which the browser prefers: light
// or dark.
func colours(scheme string) step {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		return cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
