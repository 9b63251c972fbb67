//go:build !race

package browser_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/test/hostrpc"
)

// liveApp is a page that does what applications typically do. Its title reports the
// results.
const liveApp = `<!doctype html><meta charset="utf-8"><title>working</title>
<form id="form" action="/form?q=1" method="post"><input id="field" name="field"><button id="send">Send</button></form>
<script type="module">
import { answer } from "/module.js";
const said = {};
const say = (name, value) => { said[name] = value; document.title = JSON.stringify(said); };
const attempt = async (name, work) => { try { say(name, await work()); } catch (e) { say(name, "failed: " + e); } };
await attempt("module", () => answer);
await attempt("post", async () => (await fetch("/upload", { method: "POST", body: new Blob(["x".repeat(20_000_000)]) })).text());
await attempt("range", async () => { const r = await fetch("/large", { headers: { Range: "bytes=5-9" } }); return r.status + " " + await r.text(); });
await attempt("large", async () => (await (await fetch("/large")).arrayBuffer()).byteLength);
await attempt("events", () => new Promise((done) => { const e = new EventSource("/events"); const got = []; e.onmessage = ({ data }) => { got.push(data); if (got.length === 3) { e.close(); done(got.join()); } }; }));
await attempt("cookies", async () => { await fetch("/cookie"); document.cookie = "script=1; SameSite=None; Secure; Partitioned"; return (await fetch("/cookies")).text(); });
await attempt("local", () => { localStorage.setItem("a", "kept"); return localStorage.getItem("a"); });
await attempt("indexed", () => new Promise((done, fail) => { const r = indexedDB.open("x"); r.onsuccess = () => done("open"); r.onerror = fail; }));
await attempt("worker", () => new Promise((done, fail) => { const w = new Worker("/worker.js"); w.onmessage = ({ data }) => done(data); w.onerror = fail; }));
await attempt("service", async () => { await navigator.serviceWorker.register("/sw.js"); await navigator.serviceWorker.ready;
  while (!navigator.serviceWorker.controller) await new Promise((done) => setTimeout(done, 20));
  return (await fetch("/by-the-service-worker")).text(); });
await attempt("frame", () => new Promise((done) => { const f = document.createElement("iframe"); f.src = "/inner"; f.onload = () => done(f.contentDocument.body.textContent); document.body.append(f); }));
await attempt("redirect", async () => { const r = await fetch("/redirect"); return new URL(r.url).pathname + " " + await r.text(); });
await attempt("console", () => { try { return parent.document.title; } catch { return "refused"; } });
const socket = new WebSocket("/socket".replace(/^/, location.origin.replace("http", "ws")));
socket.onmessage = ({ data }) => say("socket", data);
socket.onclose = () => say("socket", "closed");
socket.onopen = () => socket.send("hello");
window.socket = socket;
say("done", true);
</script>`

// liveSaid is the report that liveApp must give.
const liveSaid = `{"module":"imported","post":"20000000 POST","range":"206 56789","large":3000000,"events":"0,1,2","cookies":"app=1; script=1",` +
	`"local":"kept","indexed":"open","worker":"worked","service":"served","frame":"inner","redirect":"/there there","console":"refused","done":true,"socket":"echo hello"}`

// serveLiveApp serves liveApp, and what it requests, on the host's machine.
func serveLiveApp(t *testing.T) *httptest.Server {
	text := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, body)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", text("text/html", liveApp))
	mux.Handle("/module.js", text("text/javascript", `export const answer = "imported";`))
	mux.Handle("/worker.js", text("text/javascript", `postMessage("worked");`))
	mux.Handle("/sw.js", text("text/javascript", `self.addEventListener("activate", (e) => e.waitUntil(clients.claim()));
		self.addEventListener("fetch", (e) => { if (new URL(e.request.url).pathname === "/by-the-service-worker") e.respondWith(new Response("served")); });`))
	mux.Handle("/inner", text("text/html", "inner"))
	mux.Handle("/there", text("text/plain", "there"))
	mux.Handle("/redirect", http.RedirectHandler("/there", http.StatusFound))
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, " ", r.Method)
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "large.txt", time.Time{}, bytes.NewReader(bytes.Repeat([]byte("0123456789"), 300_000)))
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 0\n\ndata: 1\n\ndata: 2\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/cookie", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "app=1; HttpOnly; Domain=localhost")
	})
	mux.HandleFunc("/cookies", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("Cookie")) })
	mux.HandleFunc("POST /form", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "<p>%s sent %q from %s", r.Method, r.PostFormValue("field"), r.Header.Get("Origin"))
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil) // accepts pages of the same origin only
		if err != nil {
			return
		}
		defer func() { _ = ws.CloseNow() }()
		for {
			kind, message, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), kind, append([]byte("echo "), message...)) != nil {
				return
			}
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// TestCanvasApp shows liveApp as a canvas, and everything in it must work. The
// console's connection drops: the application stays, with the text that the user has
// typed.
func TestCanvasApp(t *testing.T) {
	t.Parallel()
	app := serveLiveApp(t)
	port := strings.TrimPrefix(app.URL, "http://127.0.0.1:")
	p, s := canvasPage(t, stackConfig{byURL: true, preview: port, canvases: []hostrpc.Canvas{{ID: "app", URL: app.URL + "/start"}}})
	channel := p.openCanvas(s, "app")
	f := p.newFrame("/start", "document.title.includes('socket')")
	f.until("all of it", patience, func() bool { return len(eval[string](f, "document.title")) >= len(liveSaid) })
	if got := eval[string](f, "document.title"); got != liveSaid {
		t.Errorf("the application says\n%s\nwant\n%s", got, liveSaid)
	}
	eval[any](f, "document.querySelector('#field').value = 'half a'; window.mark = 1")
	p.drop(s, func() { eval[any](f, "socket.send('away')") })
	f.until("what the socket says", patience, func() bool { return strings.Contains(eval[string](f, "document.title"), "echo away") })
	if got := eval[string](f, "document.querySelector('#field').value + ' ' + window.mark"); got != "half a 1" {
		t.Errorf("after the drop, the form is %q; want half a, without a reload", got)
	}
	f.leave("document.querySelector('#field').value += ' sentence'; document.querySelector('#send').click()")
	f = p.newFrame("/form?q=1", "document.querySelector('p') !== null")
	if got, want := f.text("p"), `POST sent "half a sentence" from `+app.URL; got != want {
		t.Errorf("the form's answer: %q; want %q", got, want)
	}
	must(t, s.host.CloseCanvas(channel))
	p.holds("the canvas to go", "document.querySelector('#canvas')?.hidden ?? true")
	p.previews(s, port)
}

// previews opens a port of the host in a new tab, without a canvas, and then closes the
// preview.
func (p *page) previews(s *site, port string) {
	p.t.Helper()
	p.click(".chat-head .menu summary")
	p.press(".chat-head .menu button", "Host’s ports")
	p.wants("#previews", "development server")
	eval[any](p, "document.querySelector('#preview-port').value = "+port)
	p.click("#previews button[type=submit]")
	tab := p.newTarget("page", strings.TrimPrefix(s.url, "http://127.0.0.1")+"/", "document.title.includes('\"module\":\"imported\"')")
	if got := eval[string](tab, "String(window.opener)"); got != "null" {
		p.t.Errorf("the preview's window.opener is %s; want null", got)
	}
	p.do(front)
	p.wants("#previews", port+" since")
	p.shot("previews")
	p.click("#previews [data-preview] .danger")
	p.holds("the preview to go", "document.querySelector('#previews [data-preview]') === null")
	eval[any](tab, "fetch('/there').then(({ status }) => { document.title = status; }); 0")
	tab.until("that it is closed", patience, func() bool { return eval[string](tab, "document.title") == "410" })
}
