package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/gateway"
	"ahprelay/internal/dialhint"
)

// requestTimeout bounds a request to the running relay.
const requestTimeout = 5 * time.Second

// relayFlag selects the running relay, and a tenant.
type relayFlag struct {
	allTenants
	Tenant string `help:"Tenant." default:"default"`
}

// allTenants selects the running relay.
type allTenants struct {
	dataFlag
	Relay string `help:"The running relay's base URL. Default: the address that the relay has written into --data-dir." placeholder:"URL"`
}

// errNoRelay reports that no relay runs at the given address.
var errNoRelay = errors.New("no relay")

// runningRelay is the running relay that the flags select.
type runningRelay struct {
	keys    *auth.Keys
	dataDir string
	at      gateway.Addresses
	client  *http.Client
}

// running finds the running relay. It does not connect to it.
func (f allTenants) running() (*runningRelay, error) {
	keys, err := f.keys()
	if err != nil {
		return nil, err
	}
	r, err := f.locate()
	if err != nil {
		return nil, err
	}
	r.keys = keys
	return r, nil
}

// locate finds the running relay like running, but loads no keys.
func (f allTenants) locate() (*runningRelay, error) {
	if f.Relay != "" {
		at, err := baseURL("--relay", f.Relay)
		// The admin address in the data directory may be a different relay's.
		return &runningRelay{dataDir: f.DataDir, at: gateway.Addresses{URL: at, Public: at}, client: http.DefaultClient}, err
	}
	at, err := gateway.ReadAddresses(f.DataDir)
	return &runningRelay{dataDir: f.DataDir, at: at, client: at.Client()}, err
}

// known returns an error if the data directory has no addresses.
func (r *runningRelay) known() error {
	if r.at.URL == "" {
		return fmt.Errorf("%w runs with --data-dir %s; start it (relay serve), or give the address of a relay with --relay", errNoRelay, r.dataDir)
	}
	return nil
}

// baseURL returns the relay's base URL in a flag, without a slash at its end.
func baseURL(flag, text string) (string, error) {
	base, err := device.BaseURL(text)
	if err != nil {
		err = fmt.Errorf("%s %w", flag, err)
	}
	return base, err
}

// linkBase returns the base URL for a link: the one given with --url, or else the
// relay's.
func (r *runningRelay) linkBase(given string) (string, error) {
	if err := r.known(); given == "" && err != nil {
		return "", err
	}
	if given == "" && r.at.Public == "" {
		return "", fmt.Errorf("the relay at %s does not know the address at which browsers reach it: give it with --url here, or start the relay with --public-url", r.at.URL)
	}
	return baseURL("--url", cmp.Or(given, r.at.Public))
}

// operate sends an operator's request, with a token issued for this request, and
// decodes the answer.
func (r *runningRelay) operate(ctx context.Context, method, path, name string, body, answer any) error {
	token, err := r.keys.Tokens().IssueOperator(name)
	if err != nil {
		return err
	}
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	status, text, err := r.send(ctx, method, path, token, content)
	switch {
	case err != nil:
		return err
	case status == http.StatusUnauthorized:
		return r.differentKeys()
	case status != http.StatusOK:
		var refusal struct{ Error string }
		if json.Unmarshal(text, &refusal) != nil || refusal.Error == "" {
			return r.notRelay(status)
		}
		return &refusedCommand{status, refusal.Error}
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%w: %w", r.notRelay(status), err)
	}
	return nil
}

// A refusedCommand is a relay's error answer to a command.
type refusedCommand struct {
	status int // of HTTP
	text   string
}

func (e *refusedCommand) Error() string { return e.text }

func (r *runningRelay) differentKeys() error {
	return fmt.Errorf("the relay at %s has different keys than %s; give its own --data-dir, or the address of this directory's relay with --relay", r.at.URL, r.dataDir)
}

func (r *runningRelay) notRelay(status int) error {
	return fmt.Errorf("the server at %s is not a relay of this version (HTTP %d); give the relay's address with --relay", r.at.URL, status)
}

// send sends one request. The error wraps errNoRelay if nothing listens there.
func (r *runningRelay) send(ctx context.Context, method, path, token string, content io.Reader) (status int, body []byte, err error) {
	if err := r.known(); err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return send(ctx, r.client, r.at.URL, method, path, token, content)
}

func send(ctx context.Context, client *http.Client, base, method, path, token string, content io.Reader) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(base, "/")+path, content)
	if err != nil {
		return 0, nil, fmt.Errorf("relay %q: %w", base, err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, noAnswer(base, err)
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if hint := dialhint.Answer(base, string(body)); response.StatusCode == http.StatusBadRequest && hint != "" {
		return 0, nil, fmt.Errorf("no answer from %s: %s", base, hint)
	}
	return response.StatusCode, body, err
}

// noAnswer describes a connection error, without the request's path.
func noAnswer(base string, err error) error {
	if inURL, ok := errors.AsType[*url.Error](err); ok {
		err = inURL.Err
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return fmt.Errorf("%w answers at %s: %w; start it (relay serve), or give its address with --relay", errNoRelay, base, err)
	}
	return fmt.Errorf("no answer from %s: %w; give the relay's address with --relay", base, dialhint.Error(base, err))
}
