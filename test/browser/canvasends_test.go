//go:build !race

package browser_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"ahprelay/test/hostrpc"
)

// countingPage shows in its title how many streams its EventSource has opened, or that
// the EventSource gave up.
const countingPage = `<!doctype html><title>-</title><script>
let streams = 0;
const events = new EventSource("/events");
events.onmessage = ({ data }) => { streams++; document.title = "streams " + streams; };
events.onerror = () => { if (events.readyState === EventSource.CLOSED) document.title = "gave up"; };
</script>`

// serveCounting serves countingPage on the host's machine. open is the number of
// streams that are open.
func serveCounting(t *testing.T) (server *httptest.Server, open *atomic.Int32) {
	open = new(atomic.Int32)
	mux := http.NewServeMux()
	mux.HandleFunc("/start", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, countingPage)
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "retry: 100\ndata: hello\n\n")
		_ = http.NewResponseController(w).Flush()
		open.Add(1)
		defer open.Add(-1)
		<-r.Context().Done()
	})
	server = httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server, open
}

// TestEventSourceSurvivesCutAndNewHostAgent cuts the host-agent's network for longer
// than the resume window. Then it replaces the host-agent. Each time, the page's
// EventSource must open a new stream.
func TestEventSourceSurvivesCutAndNewHostAgent(t *testing.T) {
	t.Parallel()
	app, open := serveCounting(t)
	p, s := canvasPage(t, stackConfig{byURL: true, uplink: true, canvases: []hostrpc.Canvas{{ID: "app", URL: app.URL + "/start"}}})
	p.openCanvas(s, "app")
	f := p.newFrame("/start", "document.title === 'streams 1'")
	s.proxy.cut()
	f.until("the stream to end at the application", 2*patience, func() bool { return open.Load() == 0 })
	s.proxy.restore()
	f.until("the stream after a cut", 2*patience, func() bool { return eval[string](f, "document.title") == "streams 2" })
	p.wants("#status-text", "Live")
	s.end(s.agent)
	s.startAgent(s.host)
	f.until("the stream of a new host-agent", 2*patience, func() bool { return eval[string](f, "document.title") == "streams 3" })
}

// TestEndedCanvasCanBeReopened gives canvas sessions a short life in the console. One
// session ends while the canvas loads, and the next while the canvas is open. Each
// time, the console says so, and the user opens the canvas again.
func TestEndedCanvasCanBeReopened(t *testing.T) {
	t.Parallel()
	app, _ := serveCounting(t)
	p, s := canvasPage(t, stackConfig{byURL: true, canvases: []hostrpc.Canvas{{ID: "app", URL: app.URL + "/start"}}})
	eval[any](p, `{
		const parse = JSON.parse;
		const hour = 3_600_000, lifetimes = [0, hour];
		JSON.parse = (...of) => {
			const value = parse(...of);
			if (value?.result?.url?.includes('/.ahp-canvas/') && lifetimes.length) value.result.expires = new Date(Date.now() + lifetimes.shift()).toISOString();
			return value;
		};
		const wait = setTimeout, now = Date.now;
		window.setTimeout = (act, ms, ...more) => {
			if (!(ms > hour / 2)) return wait(act, ms, ...more);
			window.hourEnds = () => { Date.now = () => now() + hour; act(); Date.now = now; };
		};
	}`)
	p.openCanvas(s, "app")
	f := p.newFrame("/start", "document.title === 'streams 1'")
	p.wants("#canvas-ended", "This canvas has ended.")
	eval[any](f, "window.mark = 1")
	p.click("#canvas-ended button")
	f = p.newFrame("/start", "document.title === 'streams 1' && !window.mark")
	p.holds("the canvas", "document.querySelector('#canvas-ended') === null && document.querySelector('#canvas-frame').checkVisibility()")
	eval[any](p, "hourEnds(), null")
	p.wants("#canvas-ended", "This canvas has ended.")
	p.shot("canvas-ended")
	eval[any](f, "window.mark = 1")
	p.click("#canvas-ended button")
	p.newFrame("/start", "document.title === 'streams 1' && !window.mark")
	p.holds("no word of an end", "document.querySelector('#canvas-ended') === null")

	// The console's connection is cut and returns. This does not end the canvas session.
	p.drop(s, func() {})
	p.holds("no word of an end after a drop", "document.querySelector('#canvas-ended') === null && document.querySelector('#canvas-frame').checkVisibility()")
}
