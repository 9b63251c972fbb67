package gateway

import (
	"context"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/internal/tracing"
	"ahprelay/routing"
)

// openTraced opens a client's connection to a host. If tracing is on, it wraps the
// connection so that each request has a span from this relay to the host-agent and back.
func openTraced(tracer *tracing.Tracer, host hostKey, relay *routing.RelayEnd, open routing.Open, client routing.ClientConn) (upstream, error) {
	var requests *tracing.ConnTracer
	if tracer != nil && !open.Sealed {
		requests = tracer.Conn(tracing.Connection{ID: open.ID, Tenant: host.tenant, Host: host.name, Full: open.Full(), Traceparent: open.Trace})
		client = &tracedClient{ClientConn: client, requests: requests}
	}
	conn, err := relay.Open(open, client)
	switch {
	case err != nil:
		return nil, err // not an upstream that holds a nil *RelayConn
	case requests != nil:
		return tracedUpstream{conn, requests}, nil
	}
	return conn, nil
}

// tracedUpstream begins a span for each request from the client.
type tracedUpstream struct {
	*routing.RelayConn
	requests *tracing.ConnTracer
}

func (u tracedUpstream) Send(ctx context.Context, message []byte) error {
	return u.SendCounted(ctx, message, 0)
}

func (u tracedUpstream) SendCounted(ctx context.Context, message []byte, counted int) error {
	var request *tracing.Request
	if env, err := ahp.Peek(message); err == nil {
		request = u.requests.Relay(&env, len(message))
	}
	err := u.RelayConn.SendCounted(ctx, message, counted)
	request.Sent(err)
	return err
}

func (u tracedUpstream) Close(code ahp.CloseCode, reason string) {
	u.RelayConn.Close(code, reason)
	u.requests.Close()
}

func (u tracedUpstream) Abort(code ahp.CloseCode, reason string) {
	u.RelayConn.Abort(code, reason)
	u.requests.Close()
}

// tracedClient ends each span when the host responds.
type tracedClient struct {
	routing.ClientConn
	requests *tracing.ConnTracer
	large    *ahp.Skimmer // scans a fragmented message; nil if no request is pending. Used only by the link's reader
}

func (c *tracedClient) Deliver(frames []routing.Frame) {
	for _, f := range frames {
		wire.DecodePieces(f.Data, c.observe)
	}
	c.ClientConn.Deliver(frames)
}

// observe ends a span if a message from the host answers a traced request.
func (c *tracedClient) observe(payload, _ []byte, first, last, _ bool) {
	if first {
		c.large = nil
		if !c.requests.Waits() {
			return
		}
		if last {
			if env, err := ahp.Peek(payload); err == nil {
				c.requests.Answered(&env, len(payload))
			}
			return
		}
		c.large = new(ahp.Skimmer)
	}
	if c.large == nil {
		return
	}
	_, _ = c.large.Write(payload) // never fails
	if last {
		if env, err := c.large.Envelope(); err == nil {
			c.requests.Answered(&env, c.large.Size())
		}
		c.large = nil
	}
}

func (c *tracedClient) Closed(code ahp.CloseCode, reason string) {
	c.ClientConn.Closed(code, reason)
	c.requests.Close()
}
