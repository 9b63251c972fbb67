package hostagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ahprelay/auth"
)

// relayTimeout bounds one request to the relay's base URL.
const relayTimeout = 8 * time.Second

// Bounds of answers, in bytes.
const (
	maxAnswer = 16 << 10 // that are read
	maxText   = 200      // of what is no answer of a relay, in messages
)

// newHTTPClient returns the default client for the relay's base URL. It does
// not follow redirects: a POST would become a GET on the way.
func newHTTPClient() *http.Client {
	return &http.Client{
		Timeout:       relayTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A RefusedError is the relay's word that this host-agent is not welcome: to
// try again does not help.
type RefusedError struct {
	Status int    // of HTTP; 0: it is the host-agent that cannot use the answer
	Text   string // what the relay says, or is wrong

	Credential bool // what was shown is a credential, and no enrolment token
}

// Error says what to do.
func (e *RefusedError) Error() string {
	switch {
	case e.Status == 0:
		return e.Text
	case e.Status < 400:
		return fmt.Sprintf("the relay is at another URL: %s; change --relay", e.Text)
	case e.Status == http.StatusUnauthorized && e.Credential:
		return fmt.Sprintf("the relay refuses the credential: %s; if nobody has revoked it, and it has not expired, somebody else has renewed it, "+
			"so there is a copy of its file: relay revoke --host ends both; then host-agent enroll begins anew", e.Text)
	case e.Status == http.StatusUnauthorized:
		return fmt.Sprintf("the relay refuses the enrolment token: %s; get a new one with relay token host", e.Text)
	case e.Status == http.StatusNotFound, e.Status == http.StatusMethodNotAllowed:
		return fmt.Sprintf("there is no relay at that URL (HTTP %d); check --relay", e.Status)
	}
	return fmt.Sprintf("the relay refuses (HTTP %d): %s", e.Status, e.Text)
}

// ofToken reports whether it is the token that is not welcome, which other relays
// of the same keys will say too.
func (e *RefusedError) ofToken() bool {
	return e.Status == 0 || e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
}

// temporary reports whether another attempt may succeed.
func temporary(err error) bool {
	var refused *RefusedError
	return !errors.As(err, &refused)
}

// checkRelay reports why base is not the base URL of a relay.
func checkRelay(base string) error {
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return errors.New("relay: the URL is malformed; want http://host:port or https://host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("relay: want only http://host:port or https://host, and nothing secret, in the URL")
	case !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://"):
		return fmt.Errorf("relay %q: want a URL that begins with http:// or https://", base)
	case u.Hostname() == "":
		return fmt.Errorf("relay %q: no host in the URL", base)
	}
	return nil
}

// headers are those of the WebSocket handshake with the relay.
func (a *access) headers() (http.Header, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	return http.Header{"Authorization": {"Bearer " + token}}, nil
}

// credentialsFrom gets NATS credentials for this host-agent's nkey from one
// relay, which wants to see the enrolment token, and the nkey proved.
func (a *access) credentialsFrom(ctx context.Context, relay string) (userJWT string, err error) {
	challenge, err := a.challenge(ctx, relay)
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
		NATS  *bool // whether /nats is there
		Renew bool  // relays have other keys than the credential says
	}
	if err := a.post(ctx, relay, "/agent/credentials", body, &answer); err != nil {
		return "", err
	}
	if answer.NATS != nil && !*answer.NATS && len(a.elsewhere) == 0 {
		return "", &RefusedError{Text: "the relay's NATS is a cluster elsewhere; say where, with --nats-url"}
	}
	if answer.Renew {
		signal(a.outdated)
	}
	return answer.JWT, nil
}

// challenge asks a relay for a challenge, and sees whether the token is still
// for the same host.
func (a *access) challenge(ctx context.Context, relay string) (string, error) {
	var challenge struct{ Challenge, Tenant, Host string }
	if err := a.post(ctx, relay, "/agent/challenge", struct{}{}, &challenge); err != nil {
		return "", err
	}
	if challenge.Challenge == "" {
		return "", fmt.Errorf("%w: no challenge in it", notRelay(relay))
	}
	if challenge.Tenant != a.tenant || challenge.Host != a.host {
		return "", &RefusedError{Text: fmt.Sprintf(
			"the token is now for %s/%s; this host-agent serves %s/%s: start it anew", challenge.Tenant, challenge.Host, a.tenant, a.host)}
	}
	return challenge.Challenge, nil
}

// post sends one request to a relay and decodes the answer.
func (a *access) post(ctx context.Context, relay, path string, body, answer any) error {
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
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, data, err := exchange(a.http, relay, request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err := refusal(relay, response, data)
		var refused *RefusedError
		if errors.As(err, &refused) {
			refused.Credential = a.hostKey != nil
		}
		return err
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("%w: %w", notRelay(relay), err)
	}
	return nil
}

// exchange sends a request to a relay, and returns the answer with what was read of
// its body, which is closed.
func exchange(client *http.Client, relay string, request *http.Request) (response *http.Response, data []byte, err error) {
	response, err = client.Do(request)
	if err != nil {
		return nil, nil, fmt.Errorf("relay %s cannot be reached: %w", relay, unwrapURL(err))
	}
	defer response.Body.Close()
	data, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, nil, fmt.Errorf("relay %s: %w", relay, err)
	}
	return response, data, nil
}

func notRelay(relay string) error {
	return fmt.Errorf("relay %s: the answer is not that of a relay", relay)
}

// refusal says why the answer is not what was asked for.
func refusal(relay string, response *http.Response, data []byte) error {
	status, text := response.StatusCode, shorten(string(data))
	var said struct{ Error string }
	if json.Unmarshal(data, &said) == nil && said.Error != "" {
		text = shorten(said.Error)
	}
	if to, err := response.Location(); err == nil && status < 400 {
		to.Path = strings.TrimSuffix(to.Path, response.Request.URL.Path)
		text = (&url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}).String()
	}
	if status >= 500 || status == http.StatusTooManyRequests {
		return fmt.Errorf("relay %s: HTTP %d: %s", relay, status, text)
	}
	return &RefusedError{Status: status, Text: text}
}

// shorten makes a line of what a server says.
func shorten(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}

// unwrapURL drops the URL from an error of net/http: messages name the relay
// already.
func unwrapURL(err error) error {
	var inURL *url.Error
	if errors.As(err, &inURL) {
		return inURL.Err
	}
	return err
}
