package hostagent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// An authorization server without the device flow redirects the browser with a code to a
// loopback address (RFC 8252). That address is on the host's machine, because the client id
// is the host's.
//
//	← {"id":1,"result":{"id":"…","url":"https://example.com/authorize?…","redirect":"http://127.0.0.1:40001/","expiresIn":600}}
//
// A browser on the host's machine reaches the host-agent there. A browser elsewhere, such
// as a phone's, shows an error at that address. The person then copies the address into the
// console, and the console sends it to the host-agent:
//
//	→ {"id":2,"method":"relay/signInBack","params":{"channel":"ahp-root://","address":"http://127.0.0.1:40001/?code=…&state=…"}}
//
// The code in the address is useless without the verifier, which only the host-agent has.

const (
	maxSignInBack  = 10 * time.Minute // how long the host-agent waits for the browser
	maxBackAddress = 16 << 10         // longest address and longest request of a browser, in bytes
)

func listenLoopback() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

var (
	errNotExpected = errors.New("no sign-in waits for this address: begin again")
	errNotIts      = errors.New("this address is not the end of this sign-in: copy the whole address at which the browser has ended")
)

// A landing receives a server's answer, once.
type landing struct {
	state   string
	arrived chan url.Values
	expects atomic.Bool // an answer is expected and has not arrived
}

func newLanding() *landing {
	return &landing{state: rand.Text(), arrived: make(chan url.Values, 1)}
}

// take receives the server's answer. A nil landing expects no answer.
func (l *landing) take(said url.Values) error {
	switch {
	case l == nil || !l.expects.Load():
		return errNotExpected
	case subtle.ConstantTimeCompare([]byte(said.Get("state")), []byte(l.state)) != 1:
		return errNotIts
	case !l.expects.CompareAndSwap(true, false):
		return errNotExpected
	}
	l.arrived <- said // at most one is sent, so there is room
	return nil
}

// takeAddress receives the address at which a browser has shown an error.
func (l *landing) takeAddress(address string) error {
	at, err := url.Parse(address)
	if err != nil || len(address) > maxBackAddress {
		return errNotIts
	}
	return l.take(at.Query())
}

// ServeHTTP implements [http.Handler] for a browser of this machine.
func (l *landing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer") // the address has the code
	h.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet || r.URL.Path != "/" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if err := l.take(r.URL.Query()); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintln(w, err) // the browser may have gone
		return
	}
	_, _ = fmt.Fprintln(w, "Close this window, and return to the console: it shows the result.")
}

// beginBack starts to listen for a browser, and returns the address of the server's page.
func (s *signIn) beginBack(_ context.Context, form url.Values) (offer, error) {
	l, err := s.conn.agent.listenBack()
	if err != nil {
		return offer{}, errors.New("the host's machine has no free port for the sign-in")
	}
	redirect := "http://" + l.Addr().String() + "/"
	verifier := rand.Text() + rand.Text() // 52 characters; RFC 7636 wants 43
	sum := sha256.Sum256([]byte(verifier))
	at, err := url.Parse(s.server.Authorize)
	if err != nil {
		_ = l.Close() // nothing has used it
		return offer{}, err
	}
	asks := at.Query()
	for name, value := range map[string]string{
		"response_type": "code", "client_id": s.client.ID, "redirect_uri": redirect, "state": s.back.state,
		"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "code_challenge_method": "S256",
	} {
		asks.Set(name, value)
	}
	maps.Copy(asks, form)
	at.RawQuery = asks.Encode()
	server := &http.Server{Handler: s.back, ReadHeaderTimeout: signInTimeout, ReadTimeout: signInTimeout, WriteTimeout: signInTimeout, MaxHeaderBytes: maxBackAddress}
	done := make(chan struct{})
	s.conn.agent.conns.Go(func() { // the calling goroutine belongs to the group, so the group is not empty
		defer close(done)
		_ = server.Serve(l) // ends with Close
	})
	s.back.expects.Store(true)
	return offer{
		map[string]any{"url": at.String(), "redirect": redirect, "expiresIn": int(maxSignInBack.Seconds())},
		func(ctx context.Context) error {
			defer func() {
				soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // for the response to the browser
				defer cancel()
				_ = server.Shutdown(soon)
				_ = server.Close()
				<-done
			}()
			return s.finishBack(ctx, redirect, verifier)
		},
	}, nil
}

// finishBack waits for the browser, exchanges the code for a token, and gives the token to
// the host.
func (s *signIn) finishBack(ctx context.Context, redirect, verifier string) error {
	ctx, cancel := context.WithTimeout(ctx, maxSignInBack)
	defer cancel()
	defer s.back.expects.Store(false)
	var said url.Values
	select {
	case <-ctx.Done():
		return errors.New("the sign-in has expired")
	case said = <-s.back.arrived:
	}
	if iss := said.Get("iss"); (iss != "" || s.server.NamesSelf) && iss != s.server.Issuer { // RFC 9207
		return fmt.Errorf("the answer is not from %s", siteOf(s.server.Issuer))
	}
	if code := said.Get("error"); code != "" {
		return &oauthError{Code: code, Description: said.Get("error_description"), site: siteOf(s.server.Issuer)}
	}
	if said.Get("code") == "" {
		return fmt.Errorf("%s has given no code", siteOf(s.server.Issuer))
	}
	form := url.Values{"grant_type": {"authorization_code"}, "code": {said.Get("code")}, "redirect_uri": {redirect}, "code_verifier": {verifier}}
	if s.server.Issuer != githubIssuer {
		form.Set("resource", s.resource)
	}
	var granted struct {
		Token string `json:"access_token"`
	}
	if err := s.post(ctx, s.server.Token, form, &granted); err != nil {
		return err
	}
	return s.give(ctx, granted.Token)
}
