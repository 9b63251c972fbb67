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

// Event streams. An EventSource gives up for good at any answer that is no event stream, and tries again when the connection
// ends without an answer. So a request for an event stream never gets an answer that says "not now": it is held
// while the host is away, tried again, and ended without an answer if the host does not come back meanwhile. In HTTP/1.1 the
// connection is closed, in HTTP/2 the stream is reset. Answers that are final, and those of the application, pass.

// Times of held requests for event streams.
const (
	holdTime  = 20 * time.Second // how long one is held
	holdRetry = time.Second      // from one attempt to the next
)

// errForNow reports an answer of the host-agent's own that holds for now only: the application does not answer, or
// the client is not connected yet.
var errForNow = errors.New("the canvas cannot be shown at the moment")

// An eventRequest is a request for an event stream while it is being answered.
type eventRequest struct {
	refused bool // the last attempt got an answer that holds for now only; nothing was written
}

// eventsKey is where the context of a request has its *eventRequest.
type eventsKey struct{}

// eventsOf returns the request for an event stream that a context belongs to, nil if there is none.
func eventsOf(ctx context.Context) *eventRequest {
	e, _ := ctx.Value(eventsKey{}).(*eventRequest)
	return e
}

// wantsEvents reports whether a request is for an event stream, as an EventSource sends it.
func wantsEvents(r *http.Request) bool {
	return r.Method == http.MethodGet && len(r.Header["Upgrade"]) == 0 && r.ContentLength == 0 &&
		slices.ContainsFunc(r.Header["Accept"], func(accept string) bool { return strings.Contains(strings.ToLower(accept), "text/event-stream") })
}

// refuseForNow answers a request with what holds for now only; a request for an event stream it ends without an answer.
func (c *Canvases) refuseForNow(w http.ResponseWriter, r *http.Request, answer func()) {
	if wantsEvents(r) {
		panic(http.ErrAbortHandler)
	}
	answer()
}

// serveEvents answers a request for an event stream. It tries until the application answers, the answer is final, or the
// request was held for holdTime.
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
			panic(http.ErrAbortHandler) // the browser has gone, or the relay closes
		}
	}
}
