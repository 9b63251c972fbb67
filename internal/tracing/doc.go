// Package tracing makes OpenTelemetry spans for clients' requests to hosts.
//
// A relay and a host-agent each send their spans to a collector, and both belong to the same
// trace, although the link carries no trace ids. Both ends know the connection's id
// ([routing.Open.ID]) and the bytes of the request's id. From these they derive the request's
// trace, and the relay's span above the host-agent's.
//
//	client           its own, if announced in params._meta.traceparent (W3C Trace Context, in
//	                 _meta like MCP), or in the Traceparent header of its WebSocket handshake
//	└ relay          SERVER    from the request's entry to the link until the answer is queued for the client
//	  └ publish      PRODUCER  until NATS has room for it
//	    └ host-agent CONSUMER  from its arrival until the answer from the host or a gate
//	      └ host     CLIENT    from its write to the host until the answer has been read
//
// A client's own trace counts only if the client has full authority: other clients could put spans
// into foreign traces. A message's traceparent is never added or changed. The host-agent receives the
// handshake's header in [routing.Open.Trace].
//
// Both ends record the same requests if OTEL_TRACES_SAMPLER and its argument are equal: the
// decision follows from the trace id, or from the client's sampled flag.
//
// A span has the tenant, host, method, channel scheme, sizes and outcome, but no other
// part of a message, and no token.
//
// A client may reuse an id on a connection after its answer, as JSON-RPC permits. Both
// requests are then in one trace. Requests from hosts to clients, and requests by relay and
// host-agent themselves, are not traced.
package tracing
