//go:build !race

package browser_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/jpeg"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// asked is the answer to a request that the agent's host has sent to the page.
type asked struct {
	said []byte
	err  error
}

// agentAsks sends a request from the agent's host to the page, which provides the
// canvas. The channel receives the answer after the user has decided.
func agentAsks(ask func() ([]byte, error)) <-chan asked {
	answer := make(chan asked, 1)
	go func() {
		said, err := ask()
		answer <- asked{said, err}
	}()
	return answer
}

// answers waits until the page shows the agent's request with a word in it, and clicks
// yes or no.
func (p *page) answers(what, word, button string) {
	p.t.Helper()
	p.wants(`[data-lend="`+what+`"]`, word)
	p.click(`[data-lend="` + what + `"] .` + button + `:not(:disabled)`)
}

// of waits for the answer to an agent's request, and returns it.
func (p *page) of(answer <-chan asked) asked {
	p.t.Helper()
	select {
	case a := <-answer:
		return a
	case <-time.After(patience):
		p.t.Fatal("the agent has received no answer; want one")
		return asked{}
	}
}

// TestNothingIsLentWithoutConsent lets an agent use the user's device: it shows a page
// and takes a picture. The page asks the user for consent each time. Without consent,
// the agent gets nothing.
func TestNothingIsLentWithoutConsent(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "<!doctype html><title>%s</title><p>The page %s", r.URL.Path, r.URL.Path)
	}))
	defer web.Close()
	p := newBrowser(t, map[string]any{
		"use-fake-device-for-media-stream": true, "use-fake-ui-for-media-stream": true, "ignore-certificate-errors": true,
		"host-resolver-rules": "MAP pages.example.com " + web.Listener.Addr().String(),
	})
	s := startStackWith(t, stackConfig{})
	p.do(desktop(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession(canvasSession)
	p.wants("#canvases", "Notes")
	open := func(id string, input any) <-chan asked {
		return agentAsks(func() ([]byte, error) {
			channel, err := s.host.OpenCanvasWith(canvasSession, id, input)
			return []byte(channel), err
		})
	}
	if a := p.of(open("camera", nil)); a.err == nil {
		t.Fatal("a camera opens before one is lent; want an error")
	}

	p.click(`.chat-head summary`)
	p.click(`.chat-head #lend-device`)
	p.click("#lend-browser")
	p.click("#lend-camera")
	p.click(`#lend button[type=submit]`)

	// The agent asks for the camera. The picture stays on the device until the user sends
	// it.
	answer := open("camera", nil)
	p.until("the host to know of the camera", patience, func() bool {
		select {
		case <-answer: // the host did not know the camera yet
			answer = open("camera", nil)
		default:
		}
		return p.count(`[data-lend="camera"]`) > 0
	})
	p.answers("camera", "look through the camera", "no")
	if a := p.of(answer); a.err == nil || !strings.Contains(a.err.Error(), "not agreed") {
		t.Errorf("after the refusal, the agent gets %q, %v; want not agreed", a.said, a.err)
	}
	answer = open("camera", nil)
	p.answers("camera", "look through the camera", "yes")
	camera := string(p.of(answer).said)
	p.await(`#camera[data-on="true"]`)
	p.holds("a picture", "document.querySelector('#camera video').videoWidth > 0")
	p.shot("lend-camera")
	take := func() <-chan asked {
		return agentAsks(func() ([]byte, error) { return s.host.InvokeCanvas(camera, "takePicture", nil) })
	}
	answer = take()
	second := take() // the page asks for it after the first has an answer
	p.wants(`[data-lend="picture"] .more`, "Another question after this.")
	if n := p.count(".ask-lend"); n != 1 {
		t.Errorf("%d questions are shown at a time; want 1", n)
	}
	p.answers("picture", "asks for a picture", "no")
	p.until("the second question", patience, func() bool { return p.count(`[data-lend="picture"]`) == 1 && p.count(".ask-lend .more") == 0 })
	p.answers("picture", "asks for a picture", "no")
	p.of(second)
	if a := p.of(answer); a.err == nil || len(a.said) > 0 {
		t.Errorf("after the refusal, the agent gets %q, %v; want an error without a picture", a.said, a.err)
	}
	answer = take()
	p.shot("lend-picture")
	p.answers("picture", "asks for a picture", "yes")
	p.hasPicture(p.of(answer))
	p.click("#camera-off")
	p.await(`#camera[data-on="false"]`)
	answer = take()
	p.wants(`[data-lend="picture"]`, "The camera is off.")
	p.answers("picture", "", "no")
	p.of(answer)
	must(t, s.host.CloseCanvas(camera))
	p.holds("the camera to go", "document.querySelector('#camera') === null")

	// The agent shows websites. The user must consent to each site, and each runs in a
	// sandbox.
	if a := p.of(open("browser", map[string]string{"url": "https://192.168.1.1/"})); a.err == nil {
		t.Error("a page from the local network opens; want an error")
	}
	answer = open("browser", map[string]string{"url": "https://pages.example.com/one"})
	p.answers("page", "pages.example.com", "yes")
	browser := string(p.of(answer).said)
	p.wants("#canvas-title", "pages.example.com")
	f := p.newFrame("/one", "document.body.innerText.includes('The page /one')")
	if origin := eval[string](f, "self.origin"); origin != "null" {
		t.Errorf("the page has the origin %s; want none", origin)
	}
	p.shot("lend-browser")
	if _, err := s.host.InvokeCanvas(browser, "go", map[string]string{"url": "https://pages.example.com/two"}); err != nil {
		t.Error(err)
	}
	p.newFrame("/two", "document.body.innerText.includes('The page /two')")
	if said, err := s.host.InvokeCanvas(browser, "back", nil); err != nil || !strings.Contains(string(said), "/one") {
		t.Errorf("back returns %s, %v; want the page /one", said, err)
	}
	p.newFrame("/one", "document.body.innerText.includes('The page /one')")

	// After the connection has dropped, consent stays and the user is not asked again.
	// After the user has revoked it, the agent gets nothing.
	p.drop(s, func() {})
	p.wants("#canvas-badge", "ready")
	if said, err := s.host.InvokeCanvas(browser, "where", nil); err != nil || !strings.Contains(string(said), "/one") {
		t.Errorf("after a drop, the agent's website is %s, %v; want /one", said, err)
	}
	p.click(`.chat-head summary`)
	p.click(`.chat-head #lend-device`)
	p.click("#lend-browser")
	p.click("#lend-camera")
	p.click(`#lend button[type=submit]`)
	p.wants("#canvas-badge", "stale")
	if a := p.of(open("browser", map[string]string{"url": "https://pages.example.com/one"})); a.err == nil {
		t.Error("a browser opens after it was withdrawn; want an error")
	}
}

// hasPicture fails the test unless the answer contains a picture from the camera.
func (p *page) hasPicture(a asked) {
	p.t.Helper()
	var picture struct {
		MimeType, Data string
		Width, Height  int
	}
	if err := json.Unmarshal(a.said, &picture); err != nil || a.err != nil {
		p.t.Fatalf("the agent gets %.200s, %v, %v; want a picture", a.said, a.err, err)
	}
	data, err := base64.StdEncoding.DecodeString(picture.Data)
	must(p.t, err)
	img, err := jpeg.Decode(bytes.NewReader(data))
	if err != nil || picture.MimeType != "image/jpeg" {
		p.t.Fatalf("the picture has type %s: %v; want image/jpeg", picture.MimeType, err)
	}
	colours := map[[3]uint32]bool{}
	for y := 0; y < picture.Height; y += 8 {
		for x := 0; x < picture.Width; x += 8 {
			r, g, b, _ := img.At(x, y).RGBA()
			colours[[3]uint32{r >> 12, g >> 12, b >> 12}] = true
		}
	}
	if size := img.Bounds().Size(); size.X != picture.Width || size.Y != picture.Height || len(colours) < 2 {
		p.t.Errorf("the picture has size %v and is described as %d × %d, with %d colours; want the same size, at least 2 colours", size, picture.Width, picture.Height, len(colours))
	}
}
