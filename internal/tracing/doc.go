// Package tracing makes OpenTelemetry spans for clients' requests to hosts.
//
// A relay and a host-agent send their spans to a collector independently, and the link carries no
// trace ids. Still both spans belong to one trace: both ends know the connection's id
// ([routing.Open.ID]) and the bytes of the request's id. From these, both derive the ids of the
// trace and of the relay's span, the parent of the host-agent's span.
//
//	client           its own, if announced in params._meta.traceparent (W3C Trace Context, in
//	                 _meta like MCP), or in the Traceparent header of its WebSocket handshake
//	└ relay          SERVER    from the request's entry to the link until the answer is queued for the client
//	  └ publish      PRODUCER  until NATS has room for it
//	    └ host-agent CONSUMER  from its arrival until the answer from the host or a gate
//	      └ host     CLIENT    from its write to the host until the answer has been read
//
// A client's own trace is used only if the client has full authority, because other clients could
// add spans to foreign traces. A message's traceparent is never added or changed. The host-agent
// gets the handshake's header in [routing.Open.Trace].
//
// Whether a request is sampled follows from the trace id, or from the client's sampled flag. So
// both ends record the same requests if OTEL_TRACES_SAMPLER and its argument are equal.
//
// A span has the tenant, host, method, channel scheme, sizes and outcome, but no other
// part of a message, and no token.
//
// JSON-RPC permits a client to reuse an id on its connection after the answer. Both requests are
// then in one trace. Requests from hosts to clients, and requests made by relay or host-agent, are
// not traced.
package tracing
