package hostagent

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeListener is a listener in memory. visit connects to it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40001} }

// visit requests an address as a browser on the host's machine does. It returns the answer's
// status, or 0 if the listener is closed.
func (l *pipeListener) visit(t *testing.T, address string) int {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	select {
	case l.conns <- there:
	case <-l.closed:
		return 0
	}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, address, nil)
	if err == nil {
		err = r.Write(here)
	}
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(here), r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.Header.Get("Cache-Control") != "no-store" || answer.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("the browser's answer has the header %v; want no-store and no-referrer", answer.Header)
	}
	return answer.StatusCode
}

// sentBack begins a sign-in at a server without the device flow, and calls test. answer is the
// server's answer to the request for a token, and asked are the parameters in the URL for the
// browser.
func sentBack(t *testing.T, answer string, test func(w *world, r *remote, auth *authStandIn, l *pipeListener, asked url.Values)) {
	t.Helper()
	auth := &authStandIn{noCode: true, polls: []string{answer}}
	signsIn(t, auth, func(w *world, enter func(string) *remote) {
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		w.agent.listenBack = func() (net.Listener, error) { return l, nil }
		r := enter("write")
		var got struct {
			Result struct {
				URL, Redirect, Site string
				ExpiresIn           int
			}
		}
		said := r.asks("relay/signIn", wantsExample)
		if err := json.Unmarshal([]byte(said), &got); err != nil {
			t.Fatalf("the answer to relay/signIn is %s: %v; want an offer", said, err)
		}
		at, err := url.Parse(got.Result.URL)
		if err != nil || at.Host != "auth.example" || at.Path != "/authorize" || got.Result.Redirect != "http://127.0.0.1:40001/" || got.Result.Site != "auth.example" || got.Result.ExpiresIn != 600 {
			t.Fatalf("the client gets %s; want the server's address, the own address and the site", said)
		}
		test(w, r, auth, l, at.Query())
	})
}

// TestHostAgentTakesBrowsersBack signs in at a server without the device flow. The server redirects
// the browser to the host-agent's port if it runs on the host's machine. From elsewhere, the client
// sends the redirect's address. Both times, the host must get the token, and the port must close.
func TestHostAgentTakesBrowsersBack(t *testing.T) {
	for name, arrive := range map[string]func(t *testing.T, r *remote, l *pipeListener, address string) (heard string){
		"at the machine": func(t *testing.T, _ *remote, l *pipeListener, address string) string {
			if got := l.visit(t, address); got != http.StatusOK {
				t.Errorf("the browser gets HTTP %d; want 200", got)
			}
			return ""
		},
		"elsewhere": func(t *testing.T, r *remote, _ *pipeListener, address string) string {
			got := r.asks("relay/signInBack", fmt.Sprintf(`{"channel":"ahp-root://","address":%q}`, address))
			if !strings.Contains(got, `"result":{}`) {
				t.Errorf("the client gets %s; want an empty result", got)
			}
			return got
		},
	} {
		t.Run(name, func(t *testing.T) {
			sentBack(t, granted, func(w *world, r *remote, auth *authStandIn, l *pipeListener, asked url.Values) {
				for name, want := range map[string]string{"response_type": "code", "client_id": "the-host", "redirect_uri": "http://127.0.0.1:40001/", "code_challenge_method": "S256", "scope": "read", "resource": "https://api.example", "a": "b"} {
					if got := asked.Get(name); got != want {
						t.Errorf("%s is %q; want %q", name, got, want)
					}
				}
				told := arrive(t, r, l, "http://127.0.0.1:40001/?code=abc&state="+asked.Get("state"))
				w.wantRefused("ada", 0)
				time.Sleep(2 * time.Second)
				if told += r.hear(); !strings.Contains(told, `"relay/signedIn"`) || strings.Contains(told, "error") {
					t.Errorf("after the browser's return, the client receives %s; want relay/signedIn without an error", told)
				}
				if !strings.Contains(strings.Join(w.hostSide().messages(), "\n"), `"token":"very-secret"`) {
					t.Errorf("the host receives %q; want the token", w.hostSide().messages())
				}
				auth.mu.Lock()
				defer auth.mu.Unlock()
				form := auth.posts[len(auth.posts)-1]
				sum := sha256.Sum256([]byte(form.Get("code_verifier")))
				if form.Get("code") != "abc" || form.Get("redirect_uri") != "http://127.0.0.1:40001/" || base64.RawURLEncoding.EncodeToString(sum[:]) != asked.Get("code_challenge") {
					t.Errorf("the server is asked for a token with %v; want the code, the address, and a verifier that fits the challenge", form)
				}
				if l.visit(t, "http://127.0.0.1:40001/") != 0 {
					t.Error("the port is open after the sign-in; want it closed")
				}
			})
		})
	}
}

// TestForeignAnswersSignNobodyIn lists redirects that do not belong to the sign-in, or report a
// failure. No redirect of these may give the host a token, and only those with the right state may
// end the sign-in.
func TestForeignAnswersSignNobodyIn(t *testing.T) {
	for _, c := range []struct{ name, answer, query, back, heard string }{
		{"a different state", granted, "code=abc&state=guessed", "not the end of this sign-in", ""},
		{"no state", granted, "code=abc", "not the end of this sign-in", ""},
		{"no address", granted, "", "not the end of this sign-in", ""},
		{"denied", granted, "error=access_denied&state=STATE", `"result":{}`, "auth.example: access_denied"},
		{"a different server", granted, "code=abc&iss=https://evil.example&state=STATE", `"result":{}`, "the answer is not from auth.example"},
		{"no code", granted, "state=STATE", `"result":{}`, "auth.example has given no code"},
		{"refused by the server", `{"error":"invalid_grant"}`, "code=abc&state=STATE", `"result":{}`, "auth.example: invalid_grant"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sentBack(t, c.answer, func(w *world, r *remote, _ *authStandIn, l *pipeListener, asked url.Values) {
				address := "http://127.0.0.1:40001/?" + strings.ReplaceAll(c.query, "STATE", asked.Get("state"))
				got := r.asks("relay/signInBack", fmt.Sprintf(`{"channel":"ahp-root://","address":%q}`, address))
				if !strings.Contains(got, c.back) {
					t.Errorf("the client gets %s; want %q", got, c.back)
				}
				time.Sleep(2 * time.Second)
				if got += r.hear(); c.heard == "" && strings.Contains(got, "signedIn") || !strings.Contains(got, c.heard) {
					t.Errorf("the client receives %s; want %q", got, c.heard)
				}
				if strings.Contains(strings.Join(w.hostSide().messages(), "\n"), `"method":"authenticate"`) {
					t.Error("the host receives a token; want none")
				}
				again := r.asks("relay/signInBack", fmt.Sprintf(`{"channel":"ahp-root://","address":"http://127.0.0.1:40001/?code=abc&state=%s"}`, asked.Get("state")))
				if ended := c.heard != ""; ended != strings.Contains(again, "no sign-in waits") {
					t.Errorf("a second address sent by the browser gets %s; want the error no sign-in waits exactly if the first address has ended the sign-in", again)
				}
				_ = l
			})
		})
	}
}

// TestSignInBackEnds lets a sign-in expire, cancels it, or disconnects its client. The port must
// close, and the server must not be asked for a token.
func TestSignInBackEnds(t *testing.T) {
	for name, end := range map[string]func(r *remote){
		"expired":   func(*remote) { time.Sleep(maxSignInBack) },
		"cancelled": func(r *remote) { r.asks("relay/signInCancel", `{"channel":"ahp-root://"}`) },
		"left":      func(r *remote) { r.conn.Close(1000, "") },
	} {
		t.Run(name, func(t *testing.T) {
			sentBack(t, granted, func(_ *world, r *remote, auth *authStandIn, l *pipeListener, asked url.Values) {
				before, _ := auth.asked()
				end(r)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if got := l.visit(t, "http://127.0.0.1:40001/?code=abc&state="+asked.Get("state")); got != 0 {
					t.Errorf("the port answers HTTP %d after the end; want no answer", got)
				}
				if after, _ := auth.asked(); after != before {
					t.Error("the server is asked for a token after the end; want no request")
				}
			})
		})
	}
}

// FuzzSignInAddress fails if an address without the sign-in's state ends the sign-in.
func FuzzSignInAddress(f *testing.F) {
	f.Add("http://127.0.0.1:40001/?code=abc&state=x")
	f.Add("http://[::1]:1/?state=%zz;&state")
	f.Fuzz(func(t *testing.T, address string) {
		l := newLanding()
		l.expects.Store(true)
		if err := l.takeAddress(address); err == nil {
			t.Errorf("takeAddress accepts %q; want an error", address)
		}
	})
}
