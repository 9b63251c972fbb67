package connect

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/device"
)

// Bounds of a relay's answers.
const (
	relayTimeout = 10 * time.Second // for an answer
	maxAnswer    = 1 << 20          // bytes
	maxMessage   = 256 << 20        // bytes in a message, each way

	tokenTTL   = time.Hour       // lifetime of a device's tokens
	hostsFresh = 5 * time.Second // how long a list of hosts is reused
)

// A Refusal is a final error: retrying does not help.
type Refusal struct {
	Code   ahp.CloseCode
	Reason string // with the remedy, if there is one
}

func (r *Refusal) Error() string { return r.Reason }

// A Host is a host which the person may open.
type Host struct {
	Name   string `json:"host"`
	State  string `json:"state"`
	Reason string `json:"reason"`
	Relay  string `json:"relay"` // name of the relay

	Since        string          `json:"since"`
	Silent       string          `json:"notAnsweringSince,omitempty"`
	HostVersion  string          `json:"hostVersion,omitempty"`
	AgentVersion string          `json:"agentVersion,omitempty"`
	Clients      int             `json:"clients"`
	KeptAwake    json.RawMessage `json:"keptAwake,omitempty"`
	Sealed       bool            `json:"sealed,omitempty"`
}

// tokens gets tokens for a relay.
type tokens interface {
	// token returns a token for a host ("" for all) with at most the given level. program is
	// the name for the relay's audit.
	token(ctx context.Context, host string, level auth.Access, program string) (token string, expires time.Time, err error)
	// remedy returns the advice if the relay does not accept tokens any more.
	remedy(relay string) string
}

// A Relay is one relay, with the person's sign-in there.
type Relay struct {
	Name string // name in local addresses
	URL  string // base URL, without a slash at its end

	tokens  tokens
	http    *http.Client
	pairing func(host string) (*Pairing, error) // nil: no host is sealed

	mu      sync.Mutex // guards the fields below
	kept    map[keptKey]keptToken
	program string // name of the program which uses the tokens
	hosts   []Host
	hostsAt time.Time
	plain   time.Time // until when the relay is assumed not to resume connections
}

type keptKey struct {
	host  string
	level auth.Access
}

type keptToken struct {
	token string
	until time.Time // when to get a new token; wall time, because the monotonic clock stops while the machine sleeps
}

// NewRelay returns a relay.
func NewRelay(base string, tokens tokens) *Relay {
	return &Relay{
		Name: RelayName(base), URL: strings.TrimRight(base, "/"), tokens: tokens, kept: map[keptKey]keptToken{},
		http: &http.Client{Timeout: relayTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

// Token returns a token for a host, or for all hosts (""), with at most the given level ("":
// the person's own, at most operate). The time is when to get a new token: when half of the
// token's remaining lifetime is over.
func (r *Relay) Token(ctx context.Context, host string, level auth.Access) (string, time.Time, error) {
	key := keptKey{host, level}
	r.mu.Lock()
	kept, program := r.kept[key], r.program
	r.mu.Unlock()
	if time.Now().Before(kept.until) {
		return kept.token, kept.until, nil
	}
	token, expires, err := r.tokens.token(ctx, host, level, program)
	if err != nil {
		return "", time.Time{}, r.explain(err)
	}
	kept = keptToken{token, time.Now().Add(time.Until(expires) / 2).Round(0)}
	r.mu.Lock()
	r.kept[key] = kept
	r.mu.Unlock()
	return token, kept.until, nil
}

// ForProgram sets the program's name for the relay's audit, for all tokens from now on.
func (r *Relay) ForProgram(program string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.program = program[:min(len(program), 100)]
	clear(r.kept)
}

// forget drops the cached tokens, because the relay has refused one.
func (r *Relay) forget() {
	r.mu.Lock()
	clear(r.kept)
	r.mu.Unlock()
}

func (r *Relay) explain(err error) error {
	var refused *device.Refused
	var expired x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var other x509.HostnameError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Name == "invalid_grant":
		return &Refusal{ahp.CloseTokenEnded, fmt.Sprintf("the sign-in at %s has ended (%s): run ahp-connect login %s", r.Name, strings.TrimSuffix(refused.Text, "."), r.URL)}
	case errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
		return &Refusal{ahp.CloseForbidden, fmt.Sprintf("%s refuses to make a token: %s", r.Name, refused.Text)}
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return &Refusal{ahp.CloseHostOffline, fmt.Sprintf("the certificate of %s is not valid at this machine's time, %s: set the clock, or renew the certificate", r.Name, time.Now().UTC().Format(time.DateTime))}
	case errors.As(err, &unknown), errors.As(err, &other), errors.As(err, &expired):
		return &Refusal{ahp.CloseHostOffline, fmt.Sprintf("%s shows a certificate that this machine does not accept (%v): check the relay's URL", r.Name, err)}
	}
	return err
}

// remedy returns the advice if a token is not accepted any more.
func (r *Relay) remedy() string { return r.tokens.remedy(r.URL) }

// advise adds the remedy to the reason with which a relay has closed a connection.
func (r *Relay) advise(c *Closed) *Closed {
	switch c.Code {
	case ahp.CloseTokenEnded:
		return &Closed{c.Code, c.Reason + ": " + r.remedy()}
	case ahp.CloseHostOffline:
		return &Closed{c.Code, c.Reason + remedyAway}
	case ahp.CloseUnknownHost:
		return &Closed{c.Code, c.Reason + "; ahp-connect hosts lists those that you may open"}
	}
	return c
}

// do sends a GET request with a token, and decodes the answer into the variable into.
func (r *Relay) do(ctx context.Context, path, token string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := r.http.Do(request)
	if err != nil {
		return r.explain(unwrapURL(r.URL, err))
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return r.refusedBy(response.StatusCode, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return &Refusal{ahp.CloseHostOffline, fmt.Sprintf("the server at %s is no relay: check the URL", r.URL)}
	}
	return nil
}

// unwrapURL removes the URL, which may contain a secret, from an error.
func unwrapURL(at string, err error) error {
	if in, ok := errors.AsType[*url.Error](err); ok {
		err = in.Err
	}
	return fmt.Errorf("no relay answers at %s: check the network and the relay's URL (%w)", at, err)
}

func (r *Relay) refusedBy(status int, body []byte) error {
	text := strings.TrimSpace(string(body[:min(len(body), 200)]))
	page := strings.HasPrefix(text, "<")
	if page {
		text = "a web page"
	}
	switch {
	case status == http.StatusUnauthorized:
		r.forget()
		return &Refusal{ahp.CloseTokenEnded, fmt.Sprintf("%s refuses this token: %s (%s)", r.Name, r.remedy(), text)}
	case !page && (status == http.StatusForbidden || status == http.StatusNotFound):
		return &Refusal{ahp.CloseForbidden, fmt.Sprintf("%s refuses: %s", r.Name, text)}
	case status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
		return fmt.Errorf("%s answers HTTP %d: %s", r.Name, status, text)
	}
	return &Refusal{ahp.CloseHostOffline, fmt.Sprintf("the server at %s is no relay (HTTP %d): check the URL", r.URL, status)}
}

// Hosts returns the hosts which the person may open at this relay, as of at most hostsFresh
// ago.
func (r *Relay) Hosts(ctx context.Context) ([]Host, error) {
	r.mu.Lock()
	hosts, at := r.hosts, r.hostsAt
	r.mu.Unlock()
	if time.Since(at) < hostsFresh {
		return hosts, nil
	}
	token, _, err := r.Token(ctx, "", "")
	if err != nil {
		return nil, err
	}
	var answer struct{ Hosts []Host }
	if err := r.do(ctx, "/api/hosts", token, &answer); err != nil {
		return nil, err
	}
	for i := range answer.Hosts {
		answer.Hosts[i].Relay = r.Name
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts, r.hostsAt = answer.Hosts, time.Now()
	return answer.Hosts, nil
}

// deviceTokens gets tokens for a signed-in device.
type deviceTokens struct{ *device.Device }

func (d deviceTokens) token(ctx context.Context, host string, level auth.Access, program string) (string, time.Time, error) {
	ask := map[string]any{"level": level, "seconds": int(tokenTTL.Seconds()), "program": program}
	if host != "" {
		ask["hosts"] = []string{host}
	}
	var made struct {
		Token   string
		Expires time.Time
	}
	err := d.Call(ctx, http.MethodPost, "/api/tokens", ask, &made)
	if life := Lifetime(made.Token); life > 0 {
		made.Expires = time.Now().Add(life) // the relay's clock may differ
	}
	return made.Token, made.Expires, err
}

func (deviceTokens) remedy(relay string) string { return "run ahp-connect login " + relay }

// FileTokens reads each token from a file, which may be replaced at any time.
type FileTokens string

func (f FileTokens) token(_ context.Context, _ string, level auth.Access, _ string) (string, time.Time, error) {
	if level != "" {
		return "", time.Time{}, &Refusal{ahp.CloseForbidden, "a token from --token-file keeps its level: make one with the wanted level (relay token client --level)"}
	}
	token, err := f.Read()
	if err != nil {
		return "", time.Time{}, &Refusal{ahp.CloseTokenEnded, err.Error()}
	}
	return token, expiryOf(token), nil
}

// Read returns the token in the file.
func (f FileTokens) Read() (string, error) {
	b, err := os.ReadFile(string(f))
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := auth.TokenIn(b)
	if token == "" {
		return "", fmt.Errorf("--token-file %s is empty: write the output of relay token client into it", string(f))
	}
	return token, nil
}

// remedy does not contain the path, because a close reason has at most 123 bytes.
func (FileTokens) remedy(string) string {
	return "write the output of relay token client into the --token-file"
}

// expiryOf returns when a token expires; the relay verifies that. A token without expiry is
// soon read again.
func expiryOf(token string) time.Time {
	if times := timesOf(token); times.Exp > 0 {
		return time.Unix(times.Exp, 0)
	}
	return time.Now().Add(time.Minute)
}

// tokenTimes are times in a token (RFC 7519, section 4.1).
type tokenTimes struct{ Iat, Exp int64 }

// timesOf decodes a token's times without verifying the token.
func timesOf(token string) (times tokenTimes) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return tokenTimes{}
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(raw, &times) != nil {
		return tokenTimes{}
	}
	return times
}

// Lifetime returns how long a token is valid from its issue on; 0 if it does not say that.
func Lifetime(token string) time.Duration {
	times := timesOf(token)
	if times.Iat <= 0 || times.Exp <= times.Iat {
		return 0
	}
	return time.Duration(times.Exp-times.Iat) * time.Second
}

// CheckURL rejects a text which is no relay's base URL, or an unsafe one.
func CheckURL(base string, plain bool) error { return device.CheckRelay(base, plain) }
