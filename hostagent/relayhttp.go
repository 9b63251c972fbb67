package hostagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/broker"
	"ahprelay/internal/dialhint"
	"ahprelay/internal/retryafter"
	"ahprelay/internal/signal"
)

// relayTimeout bounds one request to the relay's base URL.
const relayTimeout = 8 * time.Second

// Bounds of others' texts, in bytes.
const (
	maxResponse = 8 << 20  // of a relay's response, such as the links to a host with all their viewers
	maxAnswer   = 16 << 10 // of a request to the control socket
	maxText     = 200      // of a text in an error or log message
)

// newHTTPClient returns the default client for the relay's base URL. It does not
// follow redirects, which would turn a POST into a GET.
func newHTTPClient() *http.Client {
	return &http.Client{
		Timeout:       relayTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A RefusedError reports that a relay refused this host-agent. Another attempt with
// the same token does not help.
type RefusedError struct {
	Status int    // HTTP status; 0 if the host-agent cannot use the response
	Text   string // the relay's text, or the problem

	Credential bool // the refused token is a credential, not an enrolment token
}

// Error includes the remedy.
func (e *RefusedError) Error() string {
	switch {
	case e.Status == 0:
		return e.Text
	case e.Status < 400:
		return fmt.Sprintf("the relay is at another URL: %s; change --relay", e.Text)
	case e.Status == http.StatusUnauthorized && e.Credential:
		return fmt.Sprintf("the relay refuses the credential: %s; unless it was revoked or has expired, a copy of its file has renewed it: "+
			"run \"relay revoke --host\" to end both, then \"host-agent enroll\"", e.Text)
	case e.Status == http.StatusUnauthorized:
		return fmt.Sprintf("the relay refuses the enrolment token: %s; get a new one with \"relay token host\"", e.Text)
	case e.Status == http.StatusNotFound, e.Status == http.StatusMethodNotAllowed:
		return fmt.Sprintf("no relay at that URL (HTTP %d); check --relay, or the URL of \"up\": usually only scheme, host and port, as in https://relay.example.com", e.Status)
	}
	return fmt.Sprintf("the relay refuses (HTTP %d): %s", e.Status, e.Text)
}

// ofToken reports whether the relay refused the token itself, or sent a response that the
// host-agent cannot use. Other relays with the same keys would then do the same.
func (e *RefusedError) ofToken() bool {
	return e.Status == 0 || e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
}

// temporary reports whether a new attempt may succeed.
func temporary(err error) bool {
	var refused *RefusedError
	return !errors.As(err, &refused)
}

// checkRelay reports why base is not the base URL of a relay.
func checkRelay(base string) error {
	if _, err := device.BaseURL(base); err != nil {
		return fmt.Errorf("relay %w", err)
	}
	return nil
}

// headers returns the headers of the WebSocket handshake with the relay.
func (a *access) headers() (http.Header, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	return http.Header{"Authorization": {"Bearer " + token}}, nil
}

// credentialsFrom requests NATS credentials for this host-agent's nkey from one relay.
// It presents the enrolment token or credential, and proves that it has the nkey's seed
// and the credential's key.
func (a *access) credentialsFrom(ctx context.Context, relay string) (userJWT string, err error) {
	login := a.login()
	challenge, err := a.challenge(ctx, relay, login)
	if err != nil {
		return "", err
	}
	signature, err := auth.SignChallenge(a.key, challenge, a.tenant, a.host)
	if err != nil {
		return "", err
	}
	body := map[string]any{"challenge": challenge, "nkey": a.key.Public(), "signature": signature}
	if a.hostKey != nil {
		key, err := a.hostKey()
		if err != nil {
			return "", err
		}
		if body["keySignature"], err = key.Prove(auth.ToConnect, challenge, a.tenant, a.host, a.key.Public()); err != nil {
			return "", err
		}
	}
	var answer struct {
		JWT   string
		NATS  *bool // whether the relay serves /nats
		Renew bool  // the relay's keys differ from the credential's
	}
	if err := a.post(ctx, relay, "/agent/credentials", login, body, &answer); err != nil {
		return "", err
	}
	if answer.NATS != nil && !*answer.NATS && len(a.elsewhere) == 0 {
		return "", &RefusedError{Text: "the relay does not serve /nats; set the NATS cluster's address with --nats-url"}
	}
	if answer.Renew {
		signal.Send(a.outdated)
	}
	return answer.JWT, nil
}

// login returns the header of requests that precede a login through a relay. The relay
// keeps a place for the login when many host-agents arrive. A connected host-agent needs no
// place: it only renews its credentials, and may log in through its idle connection.
func (a *access) login() http.Header {
	if len(a.elsewhere) > 0 || a.connected.Load() {
		return nil
	}
	return http.Header{broker.InstanceHeader: {a.instance}}
}

// challenge requests a challenge from a relay, and checks that the token is still for
// the same host. The header may be nil.
func (a *access) challenge(ctx context.Context, relay string, header http.Header) (string, error) {
	var challenge struct{ Challenge, Tenant, Host string }
	if err := a.post(ctx, relay, "/agent/challenge", header, struct{}{}, &challenge); err != nil {
		return "", err
	}
	if challenge.Challenge == "" {
		return "", fmt.Errorf("%w: no challenge in it", notRelay(relay))
	}
	if challenge.Tenant != a.tenant || challenge.Host != a.host {
		return "", &RefusedError{Text: fmt.Sprintf(
			"the token is now for %s/%s; this host-agent serves %s/%s: restart it", challenge.Tenant, challenge.Host, a.tenant, a.host)}
	}
	return challenge.Challenge, nil
}

// post sends one request to a relay and decodes the response. The header may be nil.
func (a *access) post(ctx context.Context, relay, path string, header http.Header, body, answer any) error {
	token, err := a.token()
	if err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	address := strings.TrimRight(relay, "/") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	maps.Copy(request.Header, header)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, data, err := exchange(a.http, relay, request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err := refusal(relay, response, data)
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			refused.Credential = a.hostKey != nil
		}
		return err
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("%w: %w", notRelay(relay), err)
	}
	return nil
}

// exchange sends a request to a relay. It returns the response, whose body is already
// closed, and the body's bytes.
func exchange(client *http.Client, relay string, request *http.Request) (response *http.Response, data []byte, err error) {
	response, err = client.Do(request)
	if err != nil {
		return nil, nil, fmt.Errorf("relay %s cannot be reached: %w", relay, dialhint.Error(relay, unwrapURL(err)))
	}
	defer response.Body.Close()
	data, err = io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return nil, nil, fmt.Errorf("relay %s: %w", relay, dialhint.Error(relay, err))
	}
	return response, data, nil
}

func notRelay(relay string) error {
	return fmt.Errorf("relay %s: the response is not that of a relay", relay)
}

func refusal(relay string, response *http.Response, data []byte) error {
	status, text := response.StatusCode, shorten(string(data))
	var failure struct{ Error string }
	if json.Unmarshal(data, &failure) == nil && failure.Error != "" {
		text = shorten(failure.Error)
	}
	if to, err := response.Location(); err == nil && status < 400 {
		to.Path = strings.TrimSuffix(to.Path, response.Request.URL.Path)
		text = (&url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}).String()
	}
	after := retryafter.Of(response.Header, maxLater)
	switch err := fmt.Errorf("relay %s: HTTP %d: %s", relay, status, text); {
	case status == http.StatusTooManyRequests:
		return &limitError{error: err, after: after}
	case status >= 500 && after > 0:
		return &limitError{error: err, after: after, busy: true}
	case status >= 500:
		return err
	}
	if hint := dialhint.Answer(relay, text); hint != "" {
		text += "; " + hint
	}
	return &RefusedError{Status: status, Text: text}
}

// shorten turns a server's text into a short line.
func shorten(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text[:min(len(text), maxAnswer)], "?")), " ")
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}

// unwrapURL removes the URL from a net/http error, because messages name the relay
// already.
func unwrapURL(err error) error {
	if inURL, ok := errors.AsType[*url.Error](err); ok {
		return inURL.Err
	}
	return err
}
