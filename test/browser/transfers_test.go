//go:build !race

package browser_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"ahprelay/test/hostrpc"
)

// Sizes of the transfers.
const (
	largeDownload = 1 << 30
	largeUpload   = 100 << 20
	sampleEvery   = 4093 // distance between sampled bytes
)

// largeFile is a virtual file; each byte follows from its offset.
type largeFile struct{ at, size int64 }

func byteAt(at int64) byte { return byte(at ^ at>>8 ^ at>>16 ^ at>>24) }

func (f *largeFile) Read(b []byte) (int, error) {
	if f.at >= f.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), f.size-f.at))
	for i := range n {
		b[i] = byteAt(f.at + int64(i))
	}
	f.at += int64(n)
	return n, nil
}

func (f *largeFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	f.at = offset
	return offset, nil
}

// sampled sums one byte in each sampleEvery, from an offset on.
func sampled(from, to int64) (sum uint32) {
	for at := from + (sampleEvery-from%sampleEvery)%sampleEvery; at < to; at += sampleEvery {
		sum = sum*31 + uint32(byteAt(at))
	}
	return sum
}

// transfersPage downloads and uploads large files while the user fills in a form.
const transfersPage = `<!doctype html><meta charset="utf-8"><title>working</title><input id="field">
<script type="module">
const every = %d;
async function sum(path, headers) {
  const response = await fetch(path, { headers });
  let at = Number(/bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "bytes 0-")[1]), sum = 0;
  const first = at;
  const reader = response.body.getReader();
  for (let r = await reader.read(); !r.done; r = await reader.read()) {
    for (let i = (every - at %% every) %% every; i < r.value.length; i += every) sum = (Math.imul(sum, 31) + r.value[i]) >>> 0;
    at += r.value.length;
    window.got = at;
  }
  return response.status + " " + (at - first) + " " + sum;
}
const said = {};
const attempt = async (name, work) => { const begun = performance.now(); try { said[name] = await work(); } catch (e) { said[name] = "failed: " + e; } said[name] += " in"; window.took = { ...window.took, [name]: performance.now() - begun }; };
await attempt("download", () => sum("/file"));
await attempt("range", () => sum("/file", { Range: "bytes=1000000007-" }));
await attempt("upload", async () => (await fetch("/upload", { method: "POST", body: new Blob([new Uint8Array(%d).map((_, i) => i ^ i >> 8 ^ i >> 16 ^ i >> 24)]) })).text());
document.title = JSON.stringify(said);
</script>`

// TestAppTransfersSurviveDrops downloads 1 GB, resumes in the middle, and uploads 100 MB while the
// host's and the browser's networks drop for 2 s: nothing is lost or reloaded. It is
// slow and runs only in make apps.
func TestAppTransfersSurviveDrops(t *testing.T) {
	t.Parallel()
	if os.Getenv(appsVariable) == "" {
		t.Skipf("%s is not set: nothing large is carried (make apps)", appsVariable)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, transfersPage, sampleEvery, largeUpload)
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file.bin", time.Time{}, &largeFile{size: largeDownload})
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		var at int64
		var sum uint32
		buf := make([]byte, 256<<10)
		for err := error(nil); err == nil; {
			var n int
			n, err = r.Body.Read(buf)
			for i := (sampleEvery - at%sampleEvery) % sampleEvery; i < int64(n); i += sampleEvery {
				sum = sum*31 + uint32(buf[i])
			}
			at += int64(n)
		}
		_, _ = fmt.Fprint(w, at, " ", sum)
	})
	app := httptest.NewServer(mux)
	t.Cleanup(app.Close)
	p, s := canvasPage(t, stackConfig{byURL: true, uplink: true, canvases: []hostrpc.Canvas{{ID: "app", URL: app.URL + "/start"}}})
	p.openCanvas(s, "app")
	f := p.newFrame("/start", "window.got > 1e7")
	eval[any](f, "document.querySelector('#field').value = 'half a sentence'; window.mark = 1")
	s.proxy.cut()
	time.Sleep(2 * time.Second) // the outage under test
	s.proxy.restore()
	f.until("all of it", 10*time.Minute, func() bool { return strings.HasPrefix(eval[string](f, "document.title"), "{") })
	want := fmt.Sprintf(`{"download":"200 %d %d in","range":"206 %d %d in","upload":"%d %d in"}`,
		largeDownload, sampled(0, largeDownload), largeDownload-1000000007, sampled(1000000007, largeDownload), largeUpload, sampled(0, largeUpload))
	if got := eval[string](f, "document.title"); got != want {
		t.Errorf("the page says\n%s\nwant\n%s", got, want)
	}
	if got := eval[string](f, "document.querySelector('#field').value + ' ' + window.mark"); got != "half a sentence 1" {
		t.Errorf("after the drop, the form is %q; want half a sentence, without a reload", got)
	}
	t.Logf("took, in ms: %s", eval[string](f, "JSON.stringify(window.took)"))
}
