package canvas

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
)

// A browser's EventSource retries when the connection ends without a response. After any
// response other than an event stream, it stops for good. So while the host is offline, a
// request for an event stream gets no temporary error. The relay holds the request and
// retries it. If the host does not return in time, the relay ends the request without a
// response: HTTP/1.1 closes the connection, HTTP/2 resets the stream. Permanent errors
// and the application's responses are forwarded.

// Timing of held requests.
const (
	holdTime  = 20 * time.Second // how long a request is held
	holdRetry = time.Second      // interval between attempts
)

// errForNow reports a temporary response from the host-agent itself: the application does
// not answer, or the client is not connected yet.
var errForNow = errors.New("the canvas is not available at the moment")

// An eventRequest is the state of a held request for an event stream.
type eventRequest struct {
	refused bool // the last attempt got a temporary response, which was not forwarded
}

// eventsKey is the context key for a request's *eventRequest.
type eventsKey struct{}

// eventsOf returns a context's eventRequest, or nil.
func eventsOf(ctx context.Context) *eventRequest {
	e, _ := ctx.Value(eventsKey{}).(*eventRequest)
	return e
}

// wantsEvents reports whether an EventSource has sent a request.
func wantsEvents(r *http.Request) bool {
	return r.Method == http.MethodGet && len(r.Header["Upgrade"]) == 0 && r.ContentLength == 0 &&
		slices.ContainsFunc(r.Header["Accept"], func(accept string) bool { return strings.Contains(strings.ToLower(accept), "text/event-stream") })
}

// refuseForNow calls answer, which writes a temporary error. For an event stream, it ends
// the request without a response instead.
func refuseForNow(r *http.Request, answer func()) {
	if wantsEvents(r) {
		panic(http.ErrAbortHandler)
	}
	answer()
}

// serveEvents serves a request for an event stream. It retries until there is a response
// to forward or the hold time is over.
func (c *Canvases) serveEvents(w http.ResponseWriter, r *http.Request) {
	over := time.After(c.hold)
	retry := time.Tick(holdRetry)
	ctx := r.Context()
	for {
		events := &eventRequest{}
		c.proxy.ServeHTTP(&finalWriter{ResponseWriter: w}, r.WithContext(context.WithValue(ctx, eventsKey{}, events)))
		if !events.refused {
			return
		}
		select {
		case <-retry:
		case <-over:
			panic(http.ErrAbortHandler)
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, auth.ErrTokenRevoked) || errors.Is(cause, auth.ErrTokenExpired) {
				status, why := refusedStatus(ctx, cause)
				refuseCanvas(w, status, why)
				return
			}
			panic(http.ErrAbortHandler) // the browser is gone, or the relay closes
		}
	}
}
