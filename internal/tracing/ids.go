package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"ahprelay/ahp"
)

// ids are the ids for a request's spans, equal at both ends.
type ids struct {
	trace    trace.TraceID
	relay    trace.SpanID
	publish  trace.SpanID
	parent   trace.SpanContext // the client's span; invalid: none
	ofClient bool
}

// idsOf derives the ids for a request on a connection. A prefix separates this hash
// from other uses.
func idsOf(conn string, id []byte) (d ids) {
	hash := sha256.New()
	hash.Write([]byte("ahp-relay trace\x00"))
	hash.Write(binary.BigEndian.AppendUint32(nil, uint32(len(conn))))
	hash.Write([]byte(conn))
	hash.Write(id)
	sum := hash.Sum(nil)
	copy(d.trace[:], sum[:16])
	copy(d.relay[:], sum[16:24])
	copy(d.publish[:], sum[24:32])
	return d
}

// join makes the request part of the client's trace, if traceparent is valid.
func (d *ids) join(traceparent string) bool {
	if traceparent == "" {
		return false
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() {
		return false
	}
	d.trace, d.parent, d.ofClient = parent.TraceID(), parent, true
	return true
}

func traceparentOf(params []byte) string { return ahp.TextOf(params, "_meta", "traceparent") }

// derivedIDs generates span ids: the ids stored in the context, or random ones.
type derivedIDs struct{}

// derivedKey is the context key of ids for the next span.
type derivedKey struct{}

type derived struct {
	trace trace.TraceID
	span  trace.SpanID
}

// NewIDs implements the SDK's IDGenerator.
func (derivedIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if d, ok := ctx.Value(derivedKey{}).(derived); ok {
		return d.trace, d.span
	}
	var t trace.TraceID
	_, _ = rand.Read(t[:]) // never fails
	return t, anySpanID()
}

// NewSpanID implements the SDK's IDGenerator.
func (derivedIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if d, ok := ctx.Value(derivedKey{}).(derived); ok {
		return d.span
	}
	return anySpanID()
}

func anySpanID() (id trace.SpanID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// maxTraceparent bounds the header in bytes. Version 00 has 55; later versions may be
// longer.
const maxTraceparent = 256

// Traceparent returns the client's traceparent in a handshake's header, or "".
func Traceparent(header http.Header) string {
	if text := header.Get("Traceparent"); len(text) <= maxTraceparent {
		return text
	}
	return ""
}
