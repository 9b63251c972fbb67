package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"ahprelay/auth"
)

// errNoRelay reports that no relay runs at the given address.
var errNoRelay = errors.New("no relay")

// operate sends an operator's request to the running relay, with a token issued for
// this request, and decodes the answer.
func (f relayFlag) operate(ctx context.Context, keys *auth.Keys, method, path, name string, body, answer any) error {
	token, err := keys.Tokens().IssueOperator(name)
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
	status, text, err := f.send(ctx, method, path, token, content)
	switch {
	case err != nil:
		return err
	case status == http.StatusUnauthorized:
		return fmt.Errorf("the relay at %s has different keys than --data-dir; give its own data directory", f.Relay)
	case status != http.StatusOK:
		var refusal struct{ Error string }
		if json.Unmarshal(text, &refusal) != nil || refusal.Error == "" {
			return fmt.Errorf("the server at %s is not a relay of this version (HTTP %d)", f.Relay, status)
		}
		return errors.New(refusal.Error)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the server at %s is not a relay of this version: %w", f.Relay, err)
	}
	return nil
}

// get sends a GET to the running relay.
func (f relayFlag) get(ctx context.Context, path, token string) (status int, body []byte, err error) {
	return f.send(ctx, http.MethodGet, path, token, nil)
}

// send sends one request to the running relay. The error wraps errNoRelay if there is
// none.
func (f relayFlag) send(ctx context.Context, method, path, token string, content io.Reader) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	address, err := url.JoinPath(f.Relay, path)
	if err != nil {
		return 0, nil, fmt.Errorf("--relay %q: want http://host:port", f.Relay)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, content)
	if err != nil {
		return 0, nil, fmt.Errorf("--relay %q: %w", f.Relay, err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, f.noAnswer(err)
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 16<<20))
	return response.StatusCode, body, err
}

// noAnswer describes a connection error, without the request's path.
func (f relayFlag) noAnswer(err error) error {
	var inURL *url.Error
	if errors.As(err, &inURL) {
		err = inURL.Err
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return fmt.Errorf("%w at %s: %w; is it running? (relay serve)", errNoRelay, f.Relay, err)
	}
	return fmt.Errorf("no relay answers at %s: %w; is it running? (relay serve)", f.Relay, err)
}
