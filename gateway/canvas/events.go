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

// An EventSource gives up for good after any answer other than an event stream, and
// retries when the connection ends without an answer. So a request for an event stream
// never gets a temporary error: it is held while the host is away, retried, and ended
// without an answer if the host does not come back in time. HTTP/1.1 closes the
// connection, HTTP/2 resets the stream. Final errors and the application's answers
// pass.

// Times of held requests for event streams.
const (
	holdTime  = 20 * time.Second // longest hold
	holdRetry = time.Second      // interval of attempts
)

// errForNow reports a temporary answer from the host-agent itself: the application
// does not answer, or the client is not connected yet.
var errForNow = errors.New("the canvas is not available at the moment")

// An eventRequest records the result of one attempt to open an event stream at the
// application.
type eventRequest struct {
	refused bool // the last attempt got a temporary answer; nothing was written
}

// eventsKey is the context key for a request's *eventRequest.
type eventsKey struct{}

// eventsOf returns the event request of a context, or nil.
func eventsOf(ctx context.Context) *eventRequest {
	e, _ := ctx.Value(eventsKey{}).(*eventRequest)
	return e
}

// wantsEvents reports whether a request is for an event stream, as sent by an
// EventSource.
func wantsEvents(r *http.Request) bool {
	return r.Method == http.MethodGet && len(r.Header["Upgrade"]) == 0 && r.ContentLength == 0 &&
		slices.ContainsFunc(r.Header["Accept"], func(accept string) bool { return strings.Contains(strings.ToLower(accept), "text/event-stream") })
}

// refuseForNow gives a request a temporary answer, but ends a request for an event
// stream without an answer.
func (c *Canvases) refuseForNow(w http.ResponseWriter, r *http.Request, answer func()) {
	if wantsEvents(r) {
		panic(http.ErrAbortHandler)
	}
	answer()
}

// serveEvents serves a request for an event stream. It retries until the application
// answers, the answer is final, or holdTime is over.
func (c *Canvases) serveEvents(w http.ResponseWriter, r *http.Request) {
	over := time.NewTimer(c.hold)
	defer over.Stop()
	retry := time.NewTicker(holdRetry)
	defer retry.Stop()
	ctx := r.Context()
	for {
		events := &eventRequest{}
		c.proxy.ServeHTTP(&finalWriter{ResponseWriter: w}, r.WithContext(context.WithValue(ctx, eventsKey{}, events)))
		if !events.refused {
			return
		}
		select {
		case <-retry.C:
		case <-over.C:
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
