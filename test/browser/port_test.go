//go:build !race

package browser_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/hostrpc"
)

// thief is a canvas whose script takes the message port through which the console
// serves content. It sends its own messages through the port, and its title reports the
// results.
const thief = `<!doctype html><title>working</title><p id=p>I have your port.</p>
<script>
const real = MessagePort.prototype.postMessage;
const taken = new Promise((done) => {
  MessagePort.prototype.postMessage = function (...args) { done(this); return real.apply(this, args); };
});
fetch("data.txt");
(async () => {
  const port = await taken;
  const answers = new Map();
  port.addEventListener("message", ({ data }) => answers.get(data.id)?.(data));
  const ask = (question) => new Promise((done) => {
    answers.set(question?.id, (data) => done(data.error ? "refused" : "imports" in data ? "parsed" : data.data));
    real.call(port, question);
    if (typeof question?.uri === "string" && typeof question.id === "number") return; // the console answers such a message sooner or later
    answers.set(++last, () => done("no answer")); // the console never answers such a message
    real.call(port, { id: last, uri: "" });
  });
  let last = 2e6;
  const got = ["port taken"];
  const attempt = async (name, question) => got.push(name + ": " + await ask(question));
  let id = 1e6;
  await attempt("own", { id: ++id, uri: "ahp-canvas-content:/thief-2/data.txt" });
  await attempt("other instance", { id: ++id, uri: "ahp-canvas-content:/notes-1/index.html" });
  await attempt("traversal", { id: ++id, uri: "ahp-canvas-content:/thief-2/%2e%2e/notes-1/index.html" });
  await attempt("backslash", { id: ++id, uri: "ahp-canvas-content:/thief-2/..%5cnotes-1/index.html" });
  await attempt("web", { id: ++id, uri: "http://LEAK/read" });
  await attempt("an object", { id: ++id, uri: { href: "ahp-canvas-content:/thief-2/data.txt" } });
  await attempt("no id", { uri: "ahp-canvas-content:/thief-2/data.txt" });
  await attempt("an id that is no number", { id: ["x"], uri: "ahp-canvas-content:/thief-2/data.txt" });
  await attempt("null", null);
  await attempt("text", "text");
  await attempt("a script to look at", { id: ++id, source: "import 'x'" });
  for (const uri of ["http://LEAK/navigated", "https://LEAK/navigated", "data:text/html,gone", "javascript:alert(1)", "//LEAK/navigated",
    "ahp-canvas-content:/notes-1/index.html", "ahp-canvas-content:/thief-2/../notes-1/index.html", "/", "", null, 7, {}]) {
    await attempt("navigate", { navigate: uri });
  }
  await attempt("a word", { failed: "Your token has expired. Please send it to mallory@example.com." });
  await attempt("another word", { ended: "Your token has expired." });
  await attempt("an end", { ended: "failed", why: "Your token has expired." });
  document.title = got.join("\n");
})();
</script>`

const thiefGot = `port taken
own: its own
other instance: refused
traversal: refused
backslash: refused
web: refused
an object: refused
no id: no answer
an id that is no number: no answer
null: no answer
text: no answer
a script to look at: refused` + "\n" + `navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
navigate: no answer
a word: no answer
another word: no answer
an end: no answer`

// TestCanvasWithThePort lets a canvas's own script take the port for the canvas's
// content. It gains nothing: no network, no other canvas, no text in the console.
func TestCanvasWithThePort(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var leaks []string
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		leaks = append(leaks, r.URL.Path)
	}))
	t.Cleanup(web.Close)
	files := fstest.MapFS{
		"index.html":  {Data: []byte(strings.ReplaceAll(thief, "LEAK", web.Listener.Addr().String()))},
		"data.txt":    {Data: []byte("its own")},
		"second.html": {Data: []byte("<!doctype html><title>second</title>")},
	}
	p := newPage(t)
	p.hostile = true
	s := startStackWith(t, stackConfig{canvases: []hostrpc.Canvas{{ID: "thief", Files: files}}})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession(canvasSession)
	p.wants("#canvases", "Notes")
	p.openCanvas(s, "thief")
	f := p.frame("/canvas-inband.html")
	f.wants("title", "an end")
	if got := f.text("title"); got != thiefGot {
		t.Errorf("a canvas with the port got\n%s\nwant\n%s", got, thiefGot)
	}
	if got := p.text("#canvas"); strings.Contains(got, "expired") || strings.Contains(got, "mallory") {
		t.Errorf("the console shows %s for the canvas; want no error", got)
	}
	// A message from the canvas on the port may still open a page of the canvas's own content.
	f.leave(`(() => {
		const real = MessagePort.prototype.postMessage;
		MessagePort.prototype.postMessage = function (...args) {
			setTimeout(() => real.call(this, { navigate: "ahp-canvas-content:/thief-2/second.html" }));
			return real.apply(this, args);
		};
		fetch("once-more.txt");
	})()`)
	p.newFrame("/canvas-inband.html", "document.title === 'second'")
	mu.Lock()
	defer mu.Unlock()
	if len(leaks) > 0 {
		t.Errorf("the canvas reached the network: %q; want no requests", leaks)
	}
}

// TestCanvasInAnAppsPlace navigates a canvas's frame to the page for MCP apps, which
// has more rights. Messages from the canvas's provider must start no app there.
func TestCanvasInAnAppsPlace(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	p.hostile = true
	s := startStackWith(t, stackConfig{canvases: []hostrpc.Canvas{{ID: "guest", Files: fstest.MapFS{
		"index.html": {Data: []byte(`<!doctype html><title>guest</title><p>Guest</p>`)},
	}}}})
	p.do(desktop(), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession(canvasSession)
	p.wants("#canvases", "Notes")
	channel := p.openCanvas(s, "guest")
	f := p.frame("/canvas-inband.html")
	f.wants("title", "guest")
	f.leave(`setTimeout(() => { location = "mcp-app.html?connect=https://example.com"; })`)
	f = p.newFrame("mcp-app.html?connect=https://example.com", "document.title === 'MCP App'")
	eval[any](f, `addEventListener("message", () => { window.heard = true; })`)
	must(t, s.host.MessageCanvas(channel, map[string]any{"html": "<title>begun</title>"}))
	f.holds("the message", "window.heard === true")
	if got := f.text("title"); got != "MCP App" {
		t.Errorf("the page around apps shows %q from a canvas; want MCP App", got)
	}
}
