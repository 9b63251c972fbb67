package canvas

import (
	"context"
	"errors"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/contentproxy"
)

// An Asker is a client that asks on its connection.
type Asker struct {
	Remote string // where it connects from

	// Grant returns what it may have a browser see of a channel.
	Grant func(channel string) (auth.CanvasGrant, error)
}

// Asks reports whether a message of a client is a request for a ticket, or about previews, that is
// answered here. Each message is asked about.
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

// Answer returns what answers such a request.
func (c *Canvases) Answer(env *ahp.Envelope, from Asker) (answer func(context.Context) ([]byte, error), err error) {
	if string(env.Method) == ticketMethod {
		return c.ticketAnswer(env, from)
	}
	return c.previewAnswer(env, from)
}

// AppendAnswer appends the answer to a request: a result or an error.
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

// Why a client gets no ticket that has not said who it is, or asks too often.
var (
	ErrNoClientID = fail(ahp.CodeInvalidParams, "the client has not said a clientId yet: initialize first")
	ErrTooOften   = fail(ahp.CodeRateLimited, "too many tickets in so short a time")
	ErrTooMany    = fail(ahp.CodeRateLimited, "more than %d requests for tickets at a time", MaxAsked)
)

// MayAsk counts a request of a subject, and reports whether there were not too many.
func (c *Canvases) MayAsk(tenant, subject string) bool {
	return c.tickets.Take(tenant+" "+subject) == 0
}

// ticketAnswer returns what answers a client's request for a ticket.
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
