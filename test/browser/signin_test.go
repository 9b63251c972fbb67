//go:build !race

package browser_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/hostrpc"
)

// An authServer is an OAuth authorization server for several issuers. /pages requires PKCE
// from a page, /devices uses device codes, and /closed sends no CORS headers.
type authServer struct {
	*httptest.Server

	mu       sync.Mutex // guards the fields below
	waiting  url.Values // query of the consent request that is open
	codes    map[string]url.Values
	clients  int             // number of registered clients
	typed    map[string]bool // user codes; true after the user has entered the code
	renewals int
	origins  []string // origins of the token requests
}

func startAuthServer(t *testing.T) *authServer {
	t.Helper()
	a := &authServer{codes: map[string]url.Values{}, typed: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-authorization-server/{kind}", func(w http.ResponseWriter, r *http.Request) {
		says := map[string]any{
			"issuer": a.URL + "/" + r.PathValue("kind"), "token_endpoint": a.URL + "/token", "registration_endpoint": a.URL + "/register",
			"code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none"}, "authorization_response_iss_parameter_supported": true,
		}
		if r.PathValue("kind") == "devices" {
			says["device_authorization_endpoint"] = a.URL + "/device"
		} else {
			says["authorization_endpoint"] = a.URL + "/authorize"
		}
		a.answer(w, http.StatusOK, says)
	})
	mux.HandleFunc("GET /.well-known/oauth-authorization-server/closed", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
	mux.HandleFunc("GET /.well-known/oauth-authorization-server/mute", func(w http.ResponseWriter, _ *http.Request) { // sends no CORS headers, so only programs can use it
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": a.URL + "/mute", "token_endpoint": a.URL + "/token", "device_authorization_endpoint": a.URL + "/device"})
	})
	mux.HandleFunc("GET /.well-known/oauth-authorization-server/back", func(w http.ResponseWriter, _ *http.Request) { // like mute, and without device codes
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": a.URL + "/back", "token_endpoint": a.URL + "/token", "authorization_endpoint": a.URL + "/grant", "code_challenge_methods_supported": []string{"S256"}})
	})
	mux.HandleFunc("GET /grant", a.grant)
	mux.HandleFunc("POST /register", a.register)
	mux.HandleFunc("GET /authorize", a.authorize)
	mux.HandleFunc("GET /allow", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cross-Origin-Opener-Policy", "same-origin") // many servers isolate their pages so
		_, _ = w.Write([]byte(`<!doctype html><title>Allow?</title><form method="post"><button>Allow</button></form>`))
	})
	mux.HandleFunc("POST /allow", a.allow)
	mux.HandleFunc("POST /token", a.token)
	mux.HandleFunc("POST /device", a.device)
	mux.HandleFunc("OPTIONS /", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Headers", "content-type")
	})
	a.Server = httptest.NewServer(mux)
	t.Cleanup(a.Close)
	return a
}

// answer sends a document as the response, readable by every origin.
func (a *authServer) answer(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(document)
}

func (a *authServer) refuse(w http.ResponseWriter, code string) {
	a.answer(w, http.StatusBadRequest, map[string]string{"error": code})
}

func (a *authServer) register(w http.ResponseWriter, r *http.Request) {
	var client struct {
		Redirects []string `json:"redirect_uris"`
		Method    string   `json:"token_endpoint_auth_method"`
	}
	if json.NewDecoder(r.Body).Decode(&client) != nil || len(client.Redirects) != 1 || client.Method != "none" {
		a.refuse(w, "invalid_client_metadata")
		return
	}
	a.mu.Lock()
	a.clients++
	a.mu.Unlock()
	a.answer(w, http.StatusCreated, map[string]string{"client_id": "client of " + client.Redirects[0]})
}

func (a *authServer) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("client_id") != "client of "+q.Get("redirect_uri") || q.Get("code_challenge_method") != "S256" || len(q.Get("state")) < 22 || q.Get("scope") != "read write" || q.Get("resource") == "" {
		http.Error(w, "not a good request: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.waiting = q
	a.mu.Unlock()
	http.Redirect(w, r, "/allow", http.StatusFound)
}

// grant redirects the browser at once to the address on the host's machine.
func (a *authServer) grant(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("client_id") != "client of the host" || !strings.HasPrefix(q.Get("redirect_uri"), "http://127.0.0.1:") {
		http.Error(w, "not a good request: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.codes[q.Get("state")] = q
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {q.Get("state")}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
}

func (a *authServer) allow(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.codes["the-code"] = a.waiting
	back := url.Values{"code": {"the-code"}, "state": {a.waiting.Get("state")}, "iss": {a.URL + "/pages"}}
	http.Redirect(w, r, a.waiting.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

func (a *authServer) device(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.FormValue("client_id"), "client of ") {
		a.refuse(w, "invalid_client")
		return
	}
	a.mu.Lock()
	a.typed["WDJB-MJHT"] = false
	a.mu.Unlock()
	a.answer(w, http.StatusOK, map[string]any{"device_code": "of-the-device", "user_code": "WDJB-MJHT", "verification_uri": a.URL + "/type", "expires_in": 600, "interval": 1})
}

func (a *authServer) token(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.origins = append(a.origins, r.Header.Get("Origin"))
	if r.Header.Get("Cookie") != "" || r.Header.Get("Authorization") != "" || r.Header.Get("Referer") != "" {
		a.refuse(w, "something_went_along")
		return
	}
	switch r.FormValue("grant_type") {
	case "authorization_code":
		asked := a.codes[r.FormValue("code")]
		delete(a.codes, r.FormValue("code"))
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		if asked == nil || base64.RawURLEncoding.EncodeToString(sum[:]) != asked.Get("code_challenge") || r.FormValue("redirect_uri") != asked.Get("redirect_uri") {
			a.refuse(w, "invalid_grant")
			return
		}
		a.answer(w, http.StatusOK, map[string]any{"access_token": "of-a-page-1", "token_type": "Bearer", "refresh_token": "again-1"})
	case "refresh_token":
		if r.FormValue("refresh_token") != "again-1" {
			a.refuse(w, "invalid_grant")
			return
		}
		a.renewals++
		a.answer(w, http.StatusOK, map[string]any{"access_token": "of-a-page-2", "token_type": "Bearer"})
	default:
		if r.FormValue("device_code") != "of-the-device" || !a.typed["WDJB-MJHT"] {
			a.refuse(w, "authorization_pending")
			return
		}
		a.answer(w, http.StatusOK, map[string]any{"access_token": "of-a-device", "token_type": "Bearer"})
	}
}

// TestConsoleExplainsSealedTokens uses a host that requires sealed tokens, as GitHub
// Copilot CLI does. The dialog explains this and accepts no token.
func TestConsoleExplainsSealedTokens(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStackWith(t, stackConfig{
		signIn: []hostrpc.SignIn{{Resource: "https://api.github.com", Name: "GitHub API", Servers: []string{"https://github.com/login/oauth"}}},
		meta:   `{"copilot.encryptionRequired":["auth-token","mcp-auth-token"],"copilot.authChallenge":{"challenge":"7c61","responseMaxAgeSeconds":300,"required":true}}`,
	})
	p.do(desktop(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.wants(".notice", "sign in to GitHub API")
	p.click(".notice")
	p.wants("#sign-in-sealed", "takes tokens only sealed with its own key")
	if n := p.count("#sign-in-ways") + p.count("#resource-token"); n > 0 {
		t.Errorf("the dialog offers %d ways to give a token that the host would refuse; want 0", n)
	}
	p.seen("sign-in-sealed")
	p.click("#sign-in-sealed button")
	p.until("the dialog to go", patience, func() bool { return p.count("#sign-in") == 0 })
}

// TestHostAgentSignsInForThePage signs an agent in at a server that pages cannot use.
// The host-agent requests the device code, and the page never gets the token. Without a
// client id, the page explains the alternatives.
func TestHostAgentSignsInForThePage(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	p.expects = "blocked by CORS policy"
	a := startAuthServer(t)
	s := startStackWith(t, stackConfig{still: true, signIn: []hostrpc.SignIn{
		{Resource: "https://named.example/", Name: "The named", Servers: []string{a.URL + "/mute"}, Tokens: []string{"of-a-device"}, ClientID: "client of the host"},
		{Resource: "https://nameless.example/", Name: "The nameless", Servers: []string{a.URL + "/mute"}, Tokens: []string{"pasted"}},
	}})
	p.do(desktop(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/notes")
	p.wants("#turns", "Search understands")
	p.click(".notice")
	p.wants("#sign-in-why", "The host’s machine can sign in instead")
	p.seen("sign-in-host")
	p.click("#sign-in-host")
	p.wants("#sign-in .user-code", "WDJB-MJHT")
	p.wants("#sign-in", "It passes neither this page nor the relay.")
	p.seen("sign-in-host-code")
	a.mu.Lock()
	a.typed["WDJB-MJHT"] = true
	a.mu.Unlock()
	p.wants("#sign-in", "Sign in to The nameless")
	p.wants("#sign-in-why", "The host names no client id")
	if p.count("#sign-in-host") > 0 {
		t.Error("the page offers a sign-in that the host-agent cannot run; want none")
	}
	p.seen("sign-in-nameless")
	p.click("#sign-in [aria-label=Close]")
	p.say("sign-in")
	p.wants(lastTurn+" .parts", "https://named.example/: 1 times, https://nameless.example/: 0 times")
	p.hasNoToken("of-a-device")
}

// TestBrowserReturnsToTheHostsMachine signs an agent in at servers without device
// codes. On a phone, the user pastes the last address of the browser. On the host's
// machine, the browser's redirect reaches the host-agent.
func TestBrowserReturnsToTheHostsMachine(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	p.expects = "blocked by CORS policy"
	a := startAuthServer(t)
	wants := func(resource, name string) hostrpc.SignIn {
		return hostrpc.SignIn{Resource: resource, Name: name, Servers: []string{a.URL + "/back"}, Tokens: []string{"of-a-page-1"}, ClientID: "client of the host"}
	}
	s := startStackWith(t, stackConfig{still: true, signIn: []hostrpc.SignIn{wants("https://far.example/", "The far"), wants("https://near.example/", "The near")}})
	p.do(forms[2].size, colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/notes")
	p.wants("#turns", "Search understands")
	p.click("#back")
	p.click(".notice")
	link := func() string {
		p.click("#sign-in-host")
		p.await("#sign-in-back a")
		return eval[string](p, "document.querySelector('#sign-in-back a').href")
	}
	p.await("#sign-in-host")
	first := link()
	p.accessible("a sign-in that returns to the host's machine")
	p.shot("sign-in-back")
	p.enter("#sign-in-address", "http://127.0.0.1:1/?code=x&state=y")
	p.click("#sign-in-back [type=submit]")
	p.wants("#sign-in-back .error", "not the end of this sign-in")
	nowhere := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }} // stops before the redirect, like a phone, which cannot open the host's address
	answer, err := nowhere.Get(first)
	must(t, err)
	_ = answer.Body.Close()
	p.enter("#sign-in-address", answer.Header.Get("Location"))
	p.click("#sign-in-back [type=submit]")
	p.wants("#sign-in", "Sign in to The near")
	p.await("#sign-in-host")
	answer, err = http.Get(link()) // follows the redirect to the host-agent, like a browser on the host's machine
	must(t, err)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("a browser on the host's machine gets HTTP %d from the host-agent; want 200", answer.StatusCode)
	}
	p.holds("the dialog to end", "!document.querySelector('#sign-in')")
	p.openSession("demo:/notes")
	p.say("sign-in")
	p.wants(lastTurn+" .parts", "https://far.example/: 1 times, https://near.example/: 1 times")
	p.hasNoToken("of-a-page-1")
}

// TestAgentIsSignedInThreeWays signs an agent in to three services: in a new window, by
// a device code, and by pasting a token for a server without CORS. The page sends the
// tokens to the host, and sends them again after the host has restarted.
func TestAgentIsSignedInThreeWays(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	p.expects = "blocked by CORS policy"
	a := startAuthServer(t)
	resource := func(name, server string, tokens ...string) hostrpc.SignIn {
		return hostrpc.SignIn{Resource: "https://" + name + ".example/", Name: "The " + name, Servers: []string{a.URL + server}, Scopes: []string{"read", "write"}, Tokens: tokens}
	}
	s := startStackWith(t, stackConfig{signIn: []hostrpc.SignIn{
		resource("window", "/pages", "of-a-page-1", "of-a-page-2"), resource("code", "/devices", "of-a-device"), resource("paste", "/closed", "pasted"),
	}})
	p.do(desktop(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.openSession("demo:/notes")
	p.wants("#turns", "Search understands")
	p.click(".notice")
	p.wants("#sign-in", "Sign in to The window")
	p.await("#sign-in-window")
	p.seen("sign-in")

	p.click("#sign-in-window")
	consent := p.newTarget("page", "/allow", "document.querySelector('button') !== null")
	if !eval[bool](consent, "window.opener === null") {
		t.Error("the server's page has a window.opener; want none")
	}
	p.wants("#sign-in-ways", "Go on in the window")
	consent.leave("document.querySelector('button').click()")
	p.wants("#sign-in", "Sign in to The code")
	p.click("#sign-in-code")
	p.wants("#sign-in .user-code", "WDJB-MJHT")
	p.seen("sign-in-code")
	a.mu.Lock()
	a.typed["WDJB-MJHT"] = true
	a.mu.Unlock()
	p.wants("#sign-in", "Sign in to The paste")
	p.wants("#sign-in-why", "does not let this page read what it says (CORS), or cannot be reached.")
	p.seen("sign-in-paste")
	p.enter("#resource-token", "wrong")
	p.click("#sign-in [type=submit]")
	p.wants("#sign-in .error", "Authentication failed")
	p.enter("#resource-token", "pasted")
	p.click("#sign-in [type=submit]")
	p.until("the dialog to go", patience, func() bool { return p.count("#sign-in") == 0 && p.count(".notice") == 0 })
	p.say("sign-in")
	p.wants(lastTurn+" .parts", "https://window.example/: 1 times, https://code.example/: 1 times, https://paste.example/: 1 times")

	// The page renews expired tokens if it can. For the others, it asks the user.
	p.say("sign-in expired")
	p.wants(".notice", "sign in to The code")
	p.say("sign-in")
	p.wants(lastTurn+" .parts", "https://window.example/: 2 times, https://code.example/: 1 times, https://paste.example/: 1 times")

	// The host restarts without tokens, and gets them from the page again.
	s.host.kill()
	p.wants("#status-text", "waiting for the host")
	s.host.start()
	p.wants("#status-text", "Live")
	p.wants("#turns", "Search understands")
	p.until("the host to have it", patience, func() bool {
		p.say("sign-in")
		p.wants(lastTurn+" .parts", "Signed in to")
		return strings.Contains(p.text(lastTurn+" .parts"), "https://window.example/: 1 times, https://code.example/: 0 times")
	})

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.renewals != 1 || a.clients != 2 { // a client for each of the two issuers
		t.Errorf("%d renewals, %d clients; want 1 and 2", a.renewals, a.clients)
	}
	if origin := "http://" + s.proxy.Addr().String(); strings.Join(a.origins, "") != strings.Repeat(origin, len(a.origins)) {
		t.Errorf("tokens were asked for by %q; want %s alone", a.origins, origin)
	}
	for _, token := range []string{"of-a-page-1", "of-a-page-2", "of-a-device", "pasted", "again-1"} {
		p.hasNoToken(token)
		if got := eval[string](p, "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"); strings.Contains(got, token) {
			t.Errorf("the token is stored: %s; want it nowhere", got)
		}
	}
	// A redirect with an unknown state is refused, and its code goes nowhere.
	p.do(chromedp.Navigate(fmt.Sprintf("http://%s/signed-in.html?code=x&state=of-nobody", s.proxy.Addr())))
	p.wants("#said", "is not there any more")
	if at := eval[string](p, "location.href"); strings.Contains(at, "code") {
		t.Errorf("the address %s contains the code; want it removed", at)
	}
}
