package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Limits for a provider's responses.
const (
	maxDocument  = 256 << 10       // bytes
	fetchTimeout = 5 * time.Second // for both documents together
)

// discovery is the path of the document with the keys' URL (OpenID Connect Discovery
// 1.0, section 4).
const discovery = "/.well-known/openid-configuration"

type fetcher struct {
	issuer string
	http   http.Client
	own    *http.Transport // nil: the caller gave the client
}

func newFetcher(issuer string, given *http.Client) fetcher {
	f := fetcher{issuer: issuer}
	if given != nil {
		f.http = *given
	} else {
		f.own = http.DefaultTransport.(*http.Transport).Clone()
		f.own.DisableKeepAlives = true // one fetch in a quarter of an hour
		f.own.MaxResponseHeaderBytes = maxDocument
		f.http.Transport = f.own
	}
	f.http.Jar = nil
	f.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return f
}

func (f *fetcher) close() {
	if f.own != nil {
		f.own.CloseIdleConnections()
	}
}

func (f *fetcher) keys(ctx context.Context) ([]key, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var found struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := f.get(ctx, strings.TrimSuffix(f.issuer, "/")+discovery, &found); err != nil {
		return nil, err
	}
	// Without this check, one issuer's document could point to another issuer's keys
	// (section 4.3).
	if found.Issuer != f.issuer {
		return nil, errors.New("its discovery document names a different issuer")
	}
	u, err := url.Parse(found.JWKSURI)
	if err != nil || u.Host == "" || u.User != nil || !isSafe(u) || strings.HasPrefix(f.issuer, "https:") && u.Scheme != "https" {
		return nil, errors.New("its jwks_uri is not an https: URL")
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := f.get(ctx, u.String(), &set); err != nil {
		return nil, err
	}
	keys, err := usable(set.Keys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	return keys, nil
}

func (f *fetcher) get(ctx context.Context, from string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "application/json")
	response, err := f.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: HTTP %d; want 200", from, response.StatusCode)
	}
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || !strings.Contains(kind, "json") {
		return fmt.Errorf("GET %s: not JSON", from)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	if err != nil {
		return fmt.Errorf("GET %s: %w", from, err)
	}
	if len(data) > maxDocument {
		return fmt.Errorf("GET %s: more than %d bytes", from, maxDocument)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("GET %s: %w", from, err)
	}
	return nil
}
