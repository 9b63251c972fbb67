package tracing

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"ahprelay/ahp"
)

// maxOpen bounds a connection's open traced requests. Further requests are not traced.
const maxOpen = 256

// Bounds for texts from a message in a span, in bytes. A longer text is no real method
// or scheme.
const (
	maxMethod = 64
	maxScheme = 32
	maxID     = 64 // a request with a longer id is not traced
)

// A Connection describes the connection on which requests are traced.
type Connection struct {
	ID, Tenant, Host string

	// Full reports that the client has full authority. Only then its own trace is
	// used, from its requests or from Traceparent, the header of its handshake.
	Full        bool
	Traceparent string
}

// A ConnTracer traces one connection's requests at one end of the link. It is safe for
// concurrent use.
type ConnTracer struct {
	tracer *Tracer
	of     Connection
	common []attribute.KeyValue

	mu    sync.Mutex // guards the fields below; may be locked while any other lock is held
	open  map[string]*Request
	ended bool
}

// Conn returns a ConnTracer for a connection, or nil if the Tracer is nil.
func (t *Tracer) Conn(of Connection) *ConnTracer {
	if t == nil {
		return nil
	}
	return &ConnTracer{tracer: t, of: of, open: map[string]*Request{}, common: []attribute.KeyValue{
		attribute.String("rpc.system.name", "jsonrpc"), attribute.String("ahp.tenant", of.Tenant), attribute.String("ahp.host", of.Host), attribute.String("ahp.conn", of.ID),
	}}
}

// A Request is a traced request. Methods of a nil Request do nothing.
type Request struct {
	conn *ConnTracer
	id   string
	ctx  context.Context
	span trace.Span // this end's outer span
	part trace.Span // the inner span: publish at the relay, host at the host-agent; nil: not begun or ended
}

// Relay begins the relay's spans for a request about to be sent on the link. It
// returns nil if the message is no request or is not traced. Sent ends the inner span.
func (c *ConnTracer) Relay(env *ahp.Envelope, size int) *Request {
	d, ok := c.idsOf(env)
	if !ok {
		return nil
	}
	ctx := context.Background()
	if d.ofClient {
		ctx = trace.ContextWithRemoteSpanContext(ctx, d.parent)
	}
	r := c.begin(env, size, time.Time{}, "relay ", trace.SpanKindServer, context.WithValue(ctx, derivedKey{}, derived{d.trace, d.relay}))
	if r != nil {
		_, r.part = c.tracer.tracer.Start(context.WithValue(r.ctx, derivedKey{}, derived{d.trace, d.publish}), "publish", trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithAttributes(attribute.String("messaging.system", "nats")))
	}
	return r
}

// HostAgent begins the host-agent's span for a request which arrived at the given
// time.
func (c *ConnTracer) HostAgent(env *ahp.Envelope, size int, arrived time.Time) *Request {
	d, ok := c.idsOf(env)
	if !ok {
		return nil
	}
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: d.trace, SpanID: d.publish, TraceFlags: c.flags(&d), Remote: true})
	return c.begin(env, size, arrived, "host-agent ", trace.SpanKindConsumer, trace.ContextWithRemoteSpanContext(context.Background(), parent))
}

// flags returns the flags of the relay's span.
func (c *ConnTracer) flags(d *ids) trace.TraceFlags {
	if d.ofClient {
		return d.parent.TraceFlags()
	}
	decision := c.tracer.root.ShouldSample(sdktrace.SamplingParameters{ParentContext: context.Background(), TraceID: d.trace}).Decision
	return trace.TraceFlags(0).WithSampled(decision == sdktrace.RecordAndSample)
}

// ToHost begins the host's span, because the request is about to be written to the
// host.
func (r *Request) ToHost() {
	if r == nil {
		return
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	if r.conn.open[r.id] == r {
		_, r.part = r.conn.tracer.tracer.Start(r.ctx, "host", trace.WithSpanKind(trace.SpanKindClient))
	}
}

// Sent ends the relay's inner span: the request was sent, or err is the reason why
// not.
func (r *Request) Sent(err error) {
	if r == nil {
		return
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	if r.part != nil {
		if err != nil {
			r.part.SetStatus(codes.Error, "the connection has ended")
		}
		r.part.End()
		r.part = nil
	}
}

// idsOf returns a request's ids. It returns false if the message is no request, or its
// id is too long.
func (c *ConnTracer) idsOf(env *ahp.Envelope) (ids, bool) {
	if c == nil || env.Kind != ahp.Request || len(env.ID) > maxID {
		return ids{}, false
	}
	d := idsOf(c.of.ID, env.ID)
	if c.of.Full && !d.join(traceparentOf(env.Params)) {
		d.join(c.of.Traceparent)
	}
	return d, true
}

// begin begins this end's outer span. It returns nil if the span is not recorded.
func (c *ConnTracer) begin(env *ahp.Envelope, size int, at time.Time, name string, kind trace.SpanKind, ctx context.Context) *Request {
	method := string(env.Method[:min(len(env.Method), maxMethod)])
	options := []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithAttributes(c.common...), trace.WithAttributes(
		attribute.String("rpc.method", method), attribute.Int("ahp.request.size", size), attribute.String("ahp.channel.scheme", schemeOf(env.Channel)),
	)}
	if !at.IsZero() {
		options = append(options, trace.WithTimestamp(at))
	}
	id := string(env.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.open) >= maxOpen || c.open[id] != nil {
		return nil
	}
	ctx, span := c.tracer.tracer.Start(ctx, name+method, options...)
	if !span.IsRecording() {
		return nil
	}
	r := &Request{conn: c, id: id, ctx: context.WithValue(ctx, derivedKey{}, nil), span: span}
	c.open[id] = r
	return r
}

func schemeOf(channel []byte) string {
	scheme, _, ok := strings.Cut(string(channel[:min(len(channel), maxScheme)]), ":")
	if !ok {
		return ""
	}
	return scheme
}

// Waits reports whether a traced request is unanswered.
func (c *ConnTracer) Waits() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0
}

// Answered ends the trace of a request whose answer, of the given size, has arrived.
func (c *ConnTracer) Answered(env *ahp.Envelope, size int) {
	if c == nil || env.Kind != ahp.Response || len(env.ID) > maxID {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.open[string(env.ID)]
	if r == nil { // a host may write 7.0 for 7
		for id, one := range c.open {
			if ahp.SameID([]byte(id), env.ID) {
				r = one
			}
		}
	}
	if r == nil {
		return
	}
	r.span.SetAttributes(attribute.Int("ahp.response.size", size))
	if env.Error != nil {
		code := "unknown"
		if m, ok := ahp.MemberOf(env.Error, "code"); ok {
			if n, err := ahp.Integer(m.Raw); err == nil { // a host may write -32009.0
				code = strconv.FormatInt(n, 10)
			}
		}
		r.span.SetAttributes(attribute.String("rpc.response.status_code", code), attribute.String("error.type", code))
		r.span.SetStatus(codes.Error, "")
		r.endLocked("error")
		return
	}
	r.endLocked("ok")
}

// AnsweredHere ends the trace of a request which a gate has answered instead of the
// host.
func (r *Request) AnsweredHere() {
	if r == nil {
		return
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	r.endLocked("answered by a gate")
}

func (r *Request) endLocked(outcome string) {
	if r.conn.open[r.id] != r {
		return
	}
	delete(r.conn.open, r.id)
	if r.part != nil {
		r.part.End()
		r.part = nil
	}
	r.span.SetAttributes(attribute.String("ahp.outcome", outcome))
	r.span.End()
}

// Close ends open requests, because the connection has ended.
func (c *ConnTracer) Close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, r := range c.open {
		r.span.SetStatus(codes.Error, "the connection ended before the answer")
		r.endLocked("closed")
	}
}
