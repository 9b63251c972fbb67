//go:build !race

package browser_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// A recorder takes pictures of a page, one after another, until write stops it.
type recorder struct {
	dir    string
	end    chan struct{}
	ended  sync.WaitGroup
	frames strings.Builder // list of pictures for ffmpeg's concat demuxer
}

// recorded begins to take pictures of the page into a directory.
func (p *page) recorded(dir string) *recorder {
	r := &recorder{dir: dir, end: make(chan struct{})}
	r.ended.Go(func() {
		last := time.Now()
		for i := 0; ; i++ {
			select {
			case <-r.end:
				return
			case <-time.After(120 * time.Millisecond):
			}
			png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			name := filepath.Join(r.dir, fmt.Sprintf("%04d.png", i))
			if err != nil || os.WriteFile(name, png, 0o600) != nil {
				continue // the page has no document at this moment
			}
			if i > 0 {
				fmt.Fprintf(&r.frames, "duration %.3f\n", time.Since(last).Seconds())
			}
			last = time.Now()
			fmt.Fprintf(&r.frames, "file '%s'\n", name)
		}
	})
	return r
}

// write stops the recorder, and writes its pictures to a file as an animation that
// loops.
func (r *recorder) write(file string) error {
	close(r.end)
	r.ended.Wait()
	list := filepath.Join(r.dir, "frames.txt")
	if err := os.WriteFile(list, []byte(r.frames.String()+"duration 2\n"), 0o600); err != nil {
		return err
	}
	out, err := exec.Command("ffmpeg", "-y", "-loglevel", "error", "-f", "concat", "-safe", "0", "-i", list,
		"-vf", "fps=8,scale=390:-2:flags=lanczos", "-c:v", "libwebp_anim", "-quality", "72", "-compression_level", "6", "-loop", "0", file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ffmpeg: %w: %s", err, out)
	}
	return nil
}

// banner draws the current notification over the page, as a phone would. It takes title
// and text from the notification, and draws the frame around them itself.
func (p *page) banner() {
	p.t.Helper()
	title := p.later("navigator.serviceWorker.ready.then((r) => r.getNotifications()).then(([n]) => n.title + '\\n' + n.body)")
	eval[any](p, `(() => { const [title, ...body] = `+js(title)+`.split("\n");
		const box = document.body.appendChild(document.createElement("div"));
		box.id = "recorded-banner";
		Object.assign(box.style, {position: "fixed", inset: "10px 10px auto", zIndex: 99999, padding: "14px 16px", borderRadius: "18px", background: "#1c2733", color: "#fff", font: "15px/1.35 system-ui", boxShadow: "0 8px 30px #0008"});
		const head = box.appendChild(document.createElement("b")); head.textContent = title;
		const text = box.appendChild(document.createElement("div")); text.textContent = body.join(" ");
		return 0; })()`)
	time.Sleep(2500 * time.Millisecond)
	eval[any](p, "document.querySelector('#recorded-banner').remove(), 0")
}

// TestTourIsRecorded records the tour at the top of README: a prompt, the notification,
// the approval with its diff, a canvas, and a host that dies and returns. make
// recording names the file to write.
func TestTourIsRecorded(t *testing.T) {
	file := os.Getenv("AHP_RECORDING")
	if file == "" {
		t.Skip("make recording runs it")
	}
	s := startStack(t)
	l := startLockScreen(t, s)
	p := l.page
	look := func(d time.Duration) { time.Sleep(d) } // a pause for people who watch the tour
	p.do(chromedp.EmulateViewport(390, 780, chromedp.EmulateMobile), colours("light"), chromedp.Navigate(s.url+"/"))
	p.wants("#status-text", "Live")
	p.wants("#sessions", "Fix the flaky login test")
	r := p.recorded(t.TempDir())
	look(1200 * time.Millisecond)

	p.click("#new-session")
	look(800 * time.Millisecond)
	p.click("#create")
	p.wants("#chat-note", "No messages yet.")
	for i := range "edit" {
		p.enter("#prompt", "edit"[:i+1])
		look(120 * time.Millisecond)
	}
	look(500 * time.Millisecond)
	p.click("#send")
	l.ring("approval")
	p.banner()
	p.await(allows)
	look(2 * time.Second)
	p.click(allows)
	p.wants(lastTurn+" .parts", "Done")
	look(1200 * time.Millisecond)

	p.openSession(canvasSession)
	p.wants("#turns", "Search understands")
	look(800 * time.Millisecond)
	p.click("#canvases button")
	p.wants("#canvas-badge", "ready")
	look(2500 * time.Millisecond)
	p.click("#canvas-hide")

	s.host.kill()
	p.wants("#status-text", "offline")
	look(1800 * time.Millisecond)
	s.host.start()
	p.wants("#status-text", "Live")
	look(1200 * time.Millisecond)
	must(t, r.write(file))
	info, err := os.Stat(file)
	must(t, err)
	if info.Size() >= 3<<20 {
		t.Errorf("%s has %d bytes; want less than 3 MB", file, info.Size())
	}
	t.Logf("%s: %d bytes", file, info.Size())
}
