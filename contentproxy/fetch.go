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
	"net"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gabriel-vasile/mimetype"
	"golang.org/x/sync/singleflight"

	"ahprelay/ahp"
)

// Times and bounds of reading from an origin.
const (
	fetchTimeout = 20 * time.Second
	fetchAtOnce  = 8  // reads of one host under way
	fetchWaiting = 64 // reads that wait for their turn
)

// content is what was read, ready to be put into a result.
type content struct {
	mimeType []byte // a JSON string
	data     []byte // a JSON string
	text     bool   // data is text; else base64
}

// A refusal is an error that a client is told.
type refusal struct {
	code    int
	message string
}

// Error returns the message.
func (r *refusal) Error() string { return r.message }

func refuse(code int, format string, args ...any) *refusal {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// A fetcher reads from origins.
type fetcher struct {
	client  *http.Client
	limit   int // bytes of one resource
	flights singleflight.Group
	turns   chan struct{} // one for each read under way
	queue   chan struct{} // and for those that wait
}

func newFetcher(limit int) *fetcher {
	f := &fetcher{limit: limit, turns: make(chan struct{}, fetchAtOnce), queue: make(chan struct{}, fetchAtOnce+fetchWaiting)}
	f.client = &http.Client{
		Timeout: fetchTimeout,
		// A redirect could lead anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dialLoopback,
			MaxConnsPerHost:        fetchAtOnce,
			IdleConnTimeout:        10 * time.Second,
			ResponseHeaderTimeout:  fetchTimeout,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
	return f
}

// dialLoopback dials the addresses that a URL's host means here.
func dialLoopback(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	var failed error
	for _, at := range (origin{host, port}).dialAddresses() {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", at)
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// read reads a resource. Reads of the same one at the same time are one.
func (f *fetcher) read(ctx context.Context, o origin, a Address) (*content, *refusal) {
	target := o.url(a)
	done := f.flights.DoChan(target, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		c, r := f.fetch(ctx, target, a)
		if r != nil {
			return nil, r
		}
		return c, nil
	})
	select {
	case <-ctx.Done():
		return nil, refuse(ahp.CodeNotFound, "the connection ended")
	case result := <-done:
		var r *refusal
		if errors.As(result.Err, &r) {
			return nil, r
		}
		return result.Val.(*content), nil
	}
}

func (f *fetcher) fetch(ctx context.Context, target string, a Address) (*content, *refusal) {
	select {
	case f.queue <- struct{}{}:
		defer func() { <-f.queue }()
	default:
		return nil, refuse(ahp.CodeRateLimited, "more than %d reads of canvas content at a time", cap(f.queue))
	}
	select {
	case f.turns <- struct{}{}:
		defer func() { <-f.turns }()
	case <-ctx.Done():
		return nil, refuse(ahp.CodeNotFound, "the canvas's server is slow: no answer within %v", fetchTimeout)
	}
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
		return nil, refuse(ahp.CodePermissionDenied, "the canvas's server redirects, which is not followed")
	case status != http.StatusOK:
		return nil, refuse(ahp.CodeNotFound, "the canvas's server answers HTTP %d", status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(f.limit)+1))
	switch {
	case err != nil:
		return nil, refuse(ahp.CodeNotFound, "the canvas's server broke off")
	case len(body) > f.limit:
		return nil, refuse(ahp.CodePermissionDenied, "the content is larger than %d bytes", f.limit)
	}
	return newContent(body, mimeType(response.Header.Get("Content-Type"), a, body)), nil
}

// mimeType is what the origin says, or what name and bytes look like.
func mimeType(said string, a Address, body []byte) string {
	if said != "" {
		return said
	}
	if byName := mime.TypeByExtension(path.Ext("/" + a.Path)); byName != "" {
		return byName
	}
	return mimetype.Detect(body).String()
}

func newContent(body []byte, mimeType string) *content {
	kind := quote(strings.ToValidUTF8(mimeType, "?"))
	if isText(mimeType) && utf8.Valid(body) {
		// What is nearly all escapes would not fit into a frame.
		if text := quote(string(body)); len(text) < 2*len(body)+1024 {
			return &content{kind, text, true}
		}
	}
	data := make([]byte, 0, base64.StdEncoding.EncodedLen(len(body))+2)
	data = base64.StdEncoding.AppendEncode(append(data, '"'), body)
	return &content{kind, append(data, '"'), false}
}

// quote returns a JSON string.
func quote(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // strings can always be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// isText reports whether content of a type is text in UTF-8.
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
