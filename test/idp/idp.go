// Package idp is a small, real OpenID Connect provider for tests: authorization codes
// for single use, PKCE, a client secret, iss in responses (RFC 9207), and a page for
// the person's name. It runs in a process of its own, see [Main].
package idp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"ahprelay/test/faultproxy"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// The provider knows the relay by this client id and secret.
const (
	ClientID = "ahp-relay"
	Secret   = "not so secret"
)

// The provider knows an OAuth client without a secret by this client id. The client's
// access tokens are JWTs for Audience.
const (
	ToolID   = "an-oauth-client"
	Audience = "ahp"
)

// env is a variable in the environment of a process that must run a provider. Its value
// is the address to listen at.
const env = "AHP_TEST_IDP"

// Main runs a provider if [Start] started this process, and returns true when the
// provider has ended. Otherwise it returns false at once. TestMain must call it first.
func Main() bool {
	address := os.Getenv(env)
	if address == "" {
		return false
	}
	if err := serve(address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// Start runs a provider in a separate process until the test ends, at an address or,
// with "", at a free one. It returns the provider's issuer. stop ends the provider
// earlier. A later Start with the same address makes a provider with new keys.
func Start(t *testing.T, address string) (issuer string, stop func()) {
	t.Helper()
	if address == "" {
		address = faultproxy.OwnAddress() // a later Start can use this address
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), env+"="+address), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	if _, err := fmt.Fscanln(out, &issuer); err != nil {
		t.Fatal("the identity provider does not start: ", err)
	}
	return issuer, stop
}

// A login is a sign-in with a code that has not been exchanged yet.
type login struct {
	client, redirect, challenge string
	claims                      map[string]any
}

type provider struct {
	issuer string
	key    *ecdsa.PrivateKey

	mu    sync.Mutex // guards codes
	codes map[string]login
}

// serve runs a provider until standard input ends.
func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	p := &provider{issuer: "http://" + listener.Addr().String(), codes: map[string]login{}}
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /keys", p.keys)
	mux.HandleFunc("GET /authorize", p.page)
	mux.HandleFunc("POST /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Println(p.issuer)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Shutdown(context.Background())
	}()
	_ = server.Serve(listener)
	return nil
}

func answer(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(document)
}

func (p *provider) discovery(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{
		"issuer": p.issuer, "jwks_uri": p.issuer + "/keys", "authorization_endpoint": p.issuer + "/authorize", "token_endpoint": p.issuer + "/token",
		"id_token_signing_alg_values_supported": []string{"ES256"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"authorization_response_iss_parameter_supported": true, "code_challenge_methods_supported": []string{"S256"},
	})
}

func (p *provider) keys(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "one", Key: p.key.Public(), Algorithm: "ES256", Use: "sig"}}})
}

var page = template.Must(template.New("").Parse(`<!doctype html><title>Provider</title><form method="post">
<label>Who are you? <input id="sub" name="sub" autofocus></label> <label>Group <input id="group" name="group"></label> <button>Sign in</button></form>`))

func (p *provider) page(w http.ResponseWriter, _ *http.Request) { _ = page.Execute(w, nil) }

// authorize signs in the person whom the form names, and redirects to the client with a
// code.
func (p *provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	registered := q.Get("client_id") == ClientID && q.Get("nonce") != "" || q.Get("client_id") == ToolID
	if !registered || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" {
		http.Error(w, "not a request for a code with PKCE and nonce", http.StatusBadRequest)
		return
	}
	back := url.Values{"state": {q.Get("state")}, "iss": {p.issuer}}
	if sub := r.FormValue("sub"); sub == "" {
		back.Set("error", "access_denied")
	} else {
		code := rand.Text()
		back.Set("code", code)
		p.mu.Lock()
		p.codes[code] = login{q.Get("client_id"), q.Get("redirect_uri"), q.Get("code_challenge"), map[string]any{
			"sub": sub, "name": "Dr " + sub, "groups": []string{r.FormValue("group")}, "nonce": q.Get("nonce"),
		}}
		p.mu.Unlock()
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusSeeOther)
}

// token exchanges a code for tokens, once.
func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	id, secret, _ := r.BasicAuth()
	if id == "" {
		id, secret = r.FormValue("client_id"), r.FormValue("client_secret")
	} else {
		secret, _ = url.QueryUnescape(secret)
	}
	p.mu.Lock()
	l, ok := p.codes[r.FormValue("code")]
	delete(p.codes, r.FormValue("code"))
	p.mu.Unlock()
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if id == ClientID && secret != Secret || id != ClientID && id != ToolID {
		answer(w, http.StatusUnauthorized, map[string]string{"error": "invalid_client"})
		return
	}
	if !ok || l.client != id || l.redirect != r.FormValue("redirect_uri") || l.challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
		answer(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant"})
		return
	}
	now := time.Now()
	audience, kind := ClientID, jose.ContentType("JWT")
	if id == ToolID {
		audience, kind = Audience, "at+jwt" // type of access tokens in RFC 9068
	}
	l.claims["iss"], l.claims["aud"], l.claims["iat"], l.claims["exp"] = p.issuer, audience, now.Unix(), now.Add(time.Minute).Unix()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "one"}}, (&jose.SignerOptions{}).WithType(kind))
	var text string
	if err == nil {
		text, err = jwt.Signed(signer).Claims(l.claims).Serialize()
	}
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
		return
	}
	tokens := map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 60, "id_token": text}
	if id == ToolID {
		tokens = map[string]any{"access_token": text, "token_type": "Bearer", "expires_in": 60}
	}
	answer(w, http.StatusOK, tokens)
}

// SignIn acts as a browser that a relay has sent to address. A person enters a name and
// a group. It returns the address to which the provider redirects the browser.
func SignIn(t *testing.T, address, sub, group string) *url.URL {
	t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.PostForm(address, url.Values{"sub": {sub}, "group": {group}})
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	back, err := response.Location()
	if err != nil {
		t.Fatalf("the identity provider sends nobody back (HTTP %d): %v", response.StatusCode, err)
	}
	client.CloseIdleConnections()
	return back
}
