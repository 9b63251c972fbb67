package canvas

import (
	"context"
	"errors"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/contentproxy"
)

// An Asker is a client that sends a request on its AHP connection.
type Asker struct {
	Remote string // the client's address

	// Grant returns the authority for a browser to show a channel.
	Grant func(channel string) (auth.CanvasGrant, error)
}

// Asks reports whether a client's message is a request about tickets or previews. It runs
// for each message, so it must be fast.
func (c *Canvases) Asks(env *ahp.Envelope) bool {
	if c.Origin.Domain == "" || env.Kind != ahp.Request {
		return false
	}
	switch string(env.Method) {
	case ticketMethod, previewMethod, previewsMethod, previewCloseMethod:
		return true
	}
	return false
}

// Answer returns the function that answers a request for which Asks returns true.
func (c *Canvases) Answer(env *ahp.Envelope, from Asker) (answer func(context.Context) ([]byte, error), err error) {
	if string(env.Method) == ticketMethod {
		return c.ticketAnswer(env, from)
	}
	return c.previewAnswer(env, from)
}

// AppendAnswer appends the response to a request: a result or an error.
func AppendAnswer(b, id, result []byte, err error) []byte {
	var failed *ticketError
	switch {
	case errors.As(err, &failed):
		return ahp.AppendError(b, id, failed.code, failed.why, nil)
	case err != nil:
		return ahp.AppendError(b, id, ahp.CodeInternalError, err.Error(), nil)
	}
	return ahp.AppendResult(b, id, result)
}

// Errors for a client without clientId, or with too many requests.
var (
	ErrNoClientID = fail(ahp.CodeInvalidParams, "no clientId yet: send initialize first")
	ErrTooOften   = fail(ahp.CodeRateLimited, "too many tickets; try again later")
	ErrTooMany    = fail(ahp.CodeRateLimited, "more than %d concurrent requests for tickets", MaxAsked)
)

// MayAsk counts a subject's request, and reports whether the rate permits it.
func (c *Canvases) MayAsk(tenant, subject string) bool {
	return c.tickets.Take(tenant+" "+subject) == 0
}

// ticketAnswer returns the function that answers a client's request for a ticket.
func (c *Canvases) ticketAnswer(env *ahp.Envelope, from Asker) (answer func(context.Context) ([]byte, error), err error) {
	m := [...]ahp.Member{{Name: "uri"}}
	if err := ahp.Members(env.Params, m[:]); err != nil {
		return nil, fail(ahp.CodeInvalidParams, "params: want {channel, uri}")
	}
	uri, _ := ahp.Text(m[0].Raw)
	at, err := contentproxy.ParseAddress(uri)
	if err != nil {
		return nil, fail(ahp.CodeInvalidParams, "%v", err)
	}
	channel := string(env.Channel)
	if !strings.HasPrefix(channel, "ahp-canvas:") {
		return nil, fail(ahp.CodeInvalidParams, "channel: want ahp-canvas:/<id>")
	}
	grant, err := from.Grant(channel)
	if err != nil {
		return nil, err
	}
	grant.Instance = at.Instance
	return func(ctx context.Context) ([]byte, error) { return c.ticket(ctx, grant, uri, from.Remote) }, nil
}
