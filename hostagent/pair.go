package hostagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/internal/clock"
)

// findTime bounds each check whether a host answers at an address.
const findTime = time.Second

// A Pairing lets a person who is signed in at a relay approve a host-agent (RFC 8628).
type Pairing struct {
	Relay   string // required; the relay's base URL
	File    string // required; path of the credentials file, which must not exist yet
	Machine string // name of this machine, which the approving person sees
	User    string
	Name    string       // the host's name that the person is asked to approve
	Plain   bool         // permits http:// beyond this machine, as in Config
	HTTP    *http.Client // sends requests to the relay; default: as in Config

	// Show displays the code and its URL; required.
	Show func(device.Code)
}

// grantAnswer is a response of /auth, with or without an error.
type grantAnswer struct {
	Error       string
	Description string `json:"error_description"`

	DeviceCode string `json:"device_code"`
	UserCode   string `json:"user_code"`
	Page       string `json:"verification_uri"`
	Link       string `json:"verification_uri_complete"`
	Seconds    int    `json:"expires_in"`
	Interval   int

	Credential string
	Expires    time.Time
}

// slowDown is added to the polling interval when a relay asks for it (RFC 8628,
// section 3.5).
const slowDown = 5 * time.Second

// Bounds of a relay's times.
const (
	minPoll = time.Second
	maxPoll = time.Minute
	maxPair = time.Hour
)

// Pair requests approval for this machine and waits for it. It writes the credential,
// and returns the host's tenant and name and the credential's expiry. It trusts the
// server at the relay's URL.
func Pair(ctx context.Context, p Pairing) (tenant, host string, expires time.Time, err error) {
	if err := checkRelays([]string{p.Relay}, nil, p.Plain); err != nil {
		return "", "", expires, err
	}
	p.HTTP = cmp.Or(p.HTTP, newHTTPClient())
	file, key := &CredentialFile{path: p.File, relay: p.Relay}, auth.NewHostKey()
	if err := file.makeable(); err != nil {
		return "", "", expires, err
	}
	got, err := p.approved(ctx, key)
	if err != nil {
		return "", "", expires, err
	}
	if err := auth.CheckCredential(got.Credential, got.Credential, key.Public()); err != nil {
		return "", "", expires, err
	}
	tenant, host, err = auth.PeekHost(got.Credential)
	if err != nil {
		return "", "", expires, err
	}
	return tenant, host, got.Expires, file.write(got.Credential, key)
}

// approved requests a code, and polls until a person has approved or refused.
func (p *Pairing) approved(ctx context.Context, key *auth.HostKey) (got grantAnswer, err error) {
	ask := url.Values{"kind": {"host"}, "machine": {p.Machine}, "user": {p.User}, "name": {p.Name}, "key": {key.PublicText()}}
	asked, err := p.post(ctx, "/auth/device", ask)
	if err != nil {
		return got, err
	}
	if asked.DeviceCode == "" || asked.UserCode == "" {
		return got, fmt.Errorf("%w: no code in it", notRelay(p.Relay))
	}
	life := min(time.Duration(asked.Seconds)*time.Second, maxPair)
	p.Show(device.Code{Code: asked.UserCode, Page: asked.Page, Link: asked.Link, Fingerprint: key.Fingerprint(), Expires: time.Now().Add(life)})
	ctx, cancel := context.WithTimeoutCause(ctx, life, errors.New("not approved in time; run the command again"))
	defer cancel()
	wait := min(max(time.Duration(asked.Interval)*time.Second, minPoll), maxPoll)
	poll := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {asked.DeviceCode}, "key": {key.PublicText()}}
	for {
		if !clock.Sleep(ctx, wait) {
			return got, context.Cause(ctx)
		}
		got, err = p.post(ctx, "/auth/token", poll)
		switch {
		case err == nil:
			return got, nil
		case got.Error == "slow_down":
			wait = min(wait+slowDown, maxPoll)
		case got.Error == "authorization_pending", got.Error == "" && temporary(err):
		default:
			return got, err
		}
	}
}

// post sends a form and returns the relay's response. If err is not nil, answer may
// still hold the parts of the response that could be read.
func (p *Pairing) post(ctx context.Context, path string, form url.Values) (answer grantAnswer, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(p.Relay, "/")+path, strings.NewReader(form.Encode()))
	if err != nil {
		return answer, fmt.Errorf("relay: %w", err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, data, err := exchange(p.HTTP, p.Relay, request)
	if err != nil {
		return answer, err
	}
	readable := json.Unmarshal(data, &answer) == nil
	switch {
	case readable && answer.Error != "" && response.StatusCode < 500:
		return answer, &RefusedError{Status: response.StatusCode, Text: shorten(answer.Description)}
	case response.StatusCode != http.StatusOK:
		answer.Error = ""
		return answer, refusal(p.Relay, response, data)
	case !readable:
		return answer, notRelay(p.Relay)
	}
	return answer, nil
}
