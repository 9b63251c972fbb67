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

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 16 << 10

// A RefusedError is the relay's word that this host-agent is not welcome: to
// try again does not help.
type RefusedError struct {
	Status int    // of HTTP
	Text   string // what the relay says
}

// Error says what to do.
func (e *RefusedError) Error() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return fmt.Sprintf("the relay refuses the enrolment token: %s; get a new one with relay token host", e.Text)
	case http.StatusNotFound:
		return "there is no relay at that URL (HTTP 404); check --relay"
	}
	return fmt.Sprintf("the relay refuses (HTTP %d): %s", e.Status, e.Text)
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
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("relay %q: scheme is %q; want http:// or https://", base, u.Scheme)
	case u.Host == "":
		return fmt.Errorf("relay %q: no host in the URL", base)
	}
	return nil
}

// natsURL is where NATS is.
func (a *Agent) natsURL() string {
	if a.cfg.NATSURL != "" {
		return a.cfg.NATSURL
	}
	return "ws" + strings.TrimPrefix(strings.TrimRight(a.cfg.Relay, "/"), "http") + "/nats"
}

// headers are those of the WebSocket handshake with the relay.
func (a *Agent) headers() (http.Header, error) {
	token, err := a.cfg.Token()
	if err != nil {
		return nil, err
	}
	return http.Header{"Authorization": {"Bearer " + token}}, nil
}

// credentials gets NATS credentials for this host-agent's nkey: the relay
// wants to see the enrolment token, and the nkey proved.
func (a *Agent) credentials(ctx context.Context) (userJWT string, err error) {
	var challenge struct{ Challenge, Tenant, Host string }
	if err := a.post(ctx, "/agent/challenge", struct{}{}, &challenge); err != nil {
		return "", err
	}
	if challenge.Tenant != a.tenant || challenge.Host != a.host {
		return "", &RefusedError{http.StatusConflict, fmt.Sprintf(
			"the token is now for %s/%s; this host-agent serves %s/%s: start it anew", challenge.Tenant, challenge.Host, a.tenant, a.host)}
	}
	signature, err := auth.SignChallenge(a.key, challenge.Challenge, a.tenant, a.host)
	if err != nil {
		return "", err
	}
	var answer struct{ JWT string }
	err = a.post(ctx, "/agent/credentials", map[string]any{
		"challenge": challenge.Challenge, "nkey": a.key.Public(), "signature": signature,
	}, &answer)
	return answer.JWT, err
}

// post sends one request to the relay and decodes the answer.
func (a *Agent) post(ctx context.Context, path string, body, answer any) error {
	token, err := a.cfg.Token()
	if err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	address := strings.TrimRight(a.cfg.Relay, "/") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := a.cfg.HTTP.Do(request)
	if err != nil {
		return fmt.Errorf("relay %s cannot be reached: %w", a.cfg.Relay, unwrapURL(err))
	}
	defer response.Body.Close()
	data, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("relay %s: %w", a.cfg.Relay, err)
	}
	return a.understand(response.StatusCode, data, answer)
}

func (a *Agent) understand(status int, data []byte, answer any) error {
	if status != http.StatusOK {
		text := strings.TrimSpace(string(data))
		var said struct{ Error string }
		if json.Unmarshal(data, &said) == nil && said.Error != "" {
			text = said.Error
		}
		if status >= 500 || status == http.StatusTooManyRequests {
			return fmt.Errorf("relay %s: HTTP %d: %s", a.cfg.Relay, status, text)
		}
		return &RefusedError{status, text}
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("relay %s: the answer is not that of a relay: %w", a.cfg.Relay, err)
	}
	return nil
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
