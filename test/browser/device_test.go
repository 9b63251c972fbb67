//go:build !race

package browser_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
)

// invite makes a link that the owner's first device opens.
func (s *site) invite() string {
	s.t.Helper()
	operator, err := s.keys.IssueOperator("test")
	must(s.t, err)
	body, err := json.Marshal(map[string]string{"tenant": "default", "subject": "owner"})
	must(s.t, err)
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/operator/invites", bytes.NewReader(body))
	must(s.t, err)
	r.Header.Set("Authorization", "Bearer "+operator)
	response, err := http.DefaultClient.Do(r)
	must(s.t, err)
	defer response.Body.Close()
	var made struct{ Link string }
	must(s.t, json.NewDecoder(response.Body).Decode(&made))
	return made.Link
}

// TestConsoleByDevice signs a device in: the console needs no token there, in any
// tab, nor when it is opened anew.
func TestConsoleByDevice(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.invite()))
	p.click("#form button")
	p.until("the page of devices", patience, func() bool { return eval[string](p, "location.pathname") == "/device" })
	p.do(chromedp.Navigate(s.url + "/"))
	p.wants("#status-text", "Live")
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants(lastTurn+" .parts", "Hello, world!")
	if got := eval[int](p, "sessionStorage.length + Object.keys(localStorage).filter((k) => k.includes('token')).length"); got != 0 {
		t.Errorf("%d tokens are stored", got)
	}
	p.do(chromedp.Reload())
	p.wants("#status-text", "Live")
	p.wants("#turns", "Hello, world!")

	// Signed out, it is asked for a token.
	eval[any](p, `import("/pages/keys.js").then((k) => k.forget()).then(() => { window.forgotten = true; }); null`)
	p.until("the key to go", patience, func() bool { return eval[bool](p, "window.forgotten === true") })
	p.do(chromedp.Reload())
	p.wants("#gate", "let this device in")
}
