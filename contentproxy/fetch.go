package contentproxy

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"ahprelay/ahp"
	"ahprelay/internal/fair"
)

// Limits for reads from web servers.
const (
	fetchTimeout = 20 * time.Second // limit for a read, without the wait for its turn

	// Concurrent reads at one host, and for one client. Further reads wait their turn, at most
	// fetchesWait for each client.
	hostFetches   = 16
	clientFetches = 8
	fetchesWait   = 1024
)

// content is a resource's content, encoded for a JSON result.
type content struct {
	mimeType []byte // a JSON string
	data     []byte // a JSON string
	text     bool   // data is text; else base64
}

// A refusal is the JSON-RPC error with which a read is refused.
type refusal struct {
	code    int
	message string
}

func (r *refusal) Error() string { return r.message }

func refuse(code int, format string, args ...any) *refusal {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// A fetcher reads canvas content from web servers and allowed folders.
type fetcher struct {
	client *http.Client
	limit  int         // bytes of one resource
	turns  *fair.Turns // turns of hosts and their clients

	mu      sync.Mutex // guards flights
	flights map[string]*flight
}

// A flight is one read of a resource on behalf of all clients that currently request it. The read
// is cancelled when the last of these clients gives up.
type flight struct {
	life   context.Context // ends when no client wants the resource
	end    context.CancelFunc
	landed context.Context // ends when content or no is set
	land   context.CancelFunc

	// Guarded by the fetcher's mutex.
	wanted int // number of clients that want the resource
	begun  bool

	content *content // set before landed ends, then read-only
	no      *refusal
}

func newFetcher(cfg *Config) *fetcher {
	f := &fetcher{limit: cfg.Limit, turns: fair.New(fetchesWait, hostFetches, clientFetches), flights: map[string]*flight{}}
	f.client = &http.Client{
		Timeout: fetchTimeout,
		// Redirects are not followed, because they could lead to any server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            cfg.dial,
			TLSClientConfig:        cfg.tls(),
			MaxConnsPerHost:        hostFetches,
			IdleConnTimeout:        10 * time.Second,
			ResponseHeaderTimeout:  fetchTimeout,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
	return f
}

// read reads a resource for a client. If a read of the same resource is in progress, this client
// gets its result too.
func (f *fetcher) read(ctx context.Context, client any, o origin, a Address) (*content, *refusal) {
	target := o.url(a)
	one := f.join(ctx, target)
	defer f.leave(target, one)
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(one.landed, stop)()
	done, err := f.turns.Take(waiting, f, client)
	switch {
	case errors.Is(err, fair.ErrFull):
		return nil, refuse(ahp.CodeRateLimited, "more than %d reads of canvas content wait", fetchesWait)
	case err == nil && ctx.Err() == nil && f.begins(one):
		go func() { // other clients may want the resource when this client is gone
			defer done()
			f.fly(one, o, target, a)
		}()
	case err == nil:
		done()
	}
	select {
	case <-one.landed.Done():
		return one.content, one.no
	case <-ctx.Done():
		return nil, refuse(ahp.CodeNotFound, "the connection ended")
	}
}

// join adds the caller to a resource's flight, which it creates if necessary.
func (f *fetcher) join(ctx context.Context, target string) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.flights[target]
	if one == nil {
		one = &flight{}
		ctx = context.WithoutCancel(ctx)
		one.life, one.end = context.WithCancel(ctx)
		one.landed, one.land = context.WithCancel(ctx)
		f.flights[target] = one
	}
	one.wanted++
	return one
}

// leave removes the caller from a flight, and cancels the flight if no caller is left.
func (f *fetcher) leave(target string, one *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one.wanted--; one.wanted == 0 {
		one.end()
		f.forgetLocked(target, one)
	}
}

// forgetLocked removes a flight, so that the next request reads the resource again.
func (f *fetcher) forgetLocked(target string, one *flight) {
	if f.flights[target] == one {
		delete(f.flights, target)
	}
}

// begins reports whether the caller must perform the read, because no caller has begun it yet.
func (f *fetcher) begins(one *flight) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !one.begun
	one.begun = true
	return first
}

// fly reads a flight's resource and publishes the result.
func (f *fetcher) fly(one *flight, o origin, target string, a Address) {
	ctx, cancel := context.WithTimeout(one.life, fetchTimeout)
	defer cancel()
	if o.scheme == filesScheme {
		one.content, one.no = f.readFile(ctx, o.host, a)
	} else {
		one.content, one.no = f.fetch(ctx, target, a)
	}
	f.mu.Lock()
	f.forgetLocked(target, one)
	f.mu.Unlock()
	one.land()
}

func (f *fetcher) fetch(ctx context.Context, target string, a Address) (*content, *refusal) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, refuse(ahp.CodeInvalidParams, "the address is malformed")
	}
	response, err := f.client.Do(request)
	if err != nil {
		return nil, refuse(ahp.CodeNotFound, "the canvas's server on the host does not answer")
	}
	defer func() { _ = response.Body.Close() }()
	switch status := response.StatusCode; {
	case status >= 300 && status < 400:
		return nil, refuse(ahp.CodePermissionDenied, "the canvas's server redirects; redirects are not followed")
	case status != http.StatusOK:
		return nil, refuse(ahp.CodeNotFound, "the canvas's server answers HTTP %d", status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(f.limit)+1))
	switch {
	case err != nil:
		return nil, refuse(ahp.CodeNotFound, "the canvas's server ended the response early")
	case len(body) > f.limit:
		return nil, refuse(ahp.CodePermissionDenied, "the content is larger than %d bytes", f.limit)
	}
	return newContent(body, mimeType(response.Header.Get("Content-Type"), a.Path, body)), nil
}

// mimeType returns the media type that the web server gave. Without one, it derives the type from
// the file name, or else from the content.
func mimeType(said, name string, body []byte) string {
	if said != "" {
		return said
	}
	if byName := typeByName("/" + name); byName != "" {
		return byName
	}
	return http.DetectContentType(body)
}

func newContent(body []byte, mimeType string) *content {
	kind := quote(strings.ToValidUTF8(mimeType, "?"))
	if isText(mimeType) && utf8.Valid(body) {
		// Text that escaping makes twice as long could exceed the limit for a frame.
		if text := quote(string(body)); len(text) < 2*len(body)+1024 {
			return &content{kind, text, true}
		}
	}
	data := make([]byte, 0, base64.StdEncoding.EncodedLen(len(body))+2)
	data = base64.StdEncoding.AppendEncode(append(data, '"'), body)
	return &content{kind, append(data, '"'), false}
}

func quote(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // strings can always be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// isText reports whether a media type means text in UTF-8.
func isText(mimeType string) bool {
	kind, params, err := mime.ParseMediaType(mimeType)
	if err != nil {
		return false
	}
	if charset := strings.ToLower(params["charset"]); charset != "" && charset != "utf-8" && charset != "us-ascii" {
		return false
	}
	switch kind {
	case "application/json", "application/javascript", "application/ecmascript", "application/xml", "application/xhtml+xml",
		"application/manifest+json", "application/ld+json", "image/svg+xml":
		return true
	}
	return strings.HasPrefix(kind, "text/")
}
