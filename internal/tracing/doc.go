// Package tracing makes OpenTelemetry spans of the requests that clients send to hosts.
//
// A relay and a host-agent each send what they see to a collector, and it is one trace,
// though nothing about traces is on the wire between them: both ends know the id of the
// connection ([routing.Open.ID]) and the bytes of the request's id, and derive from these
// which trace a request belongs to and which span of the relay's is the parent of the
// host-agent's.
//
//	client           its own, if it says which: params._meta.traceparent (W3C Trace Context, in
//	                 _meta as MCP has it), or the Traceparent header of its WebSocket handshake
//	└ relay          SERVER    from when the request goes to the link until the answer is queued for the client
//	  └ publish      PRODUCER  until NATS has room for it
//	    └ host-agent CONSUMER  from when it has arrived until the answer, the host's or a gate's
//	      └ host     CLIENT    from when it is written to the host until the answer has been read
//
// What a client says of its trace counts only where it may do everything at the host:
// others could put spans into traces that are not theirs. It is never changed, nor added,
// in a message. Of the handshake's header the host-agent is told in [routing.Open.Trace].
//
// Which requests are recorded is the same at both ends if OTEL_TRACES_SAMPLER and its
// argument are: it follows from the trace id, or the flag that the client has set.
//
// A span says the tenant, host, method, scheme of the channel, sizes, and how it ended. It
// has no part of a message beside these, and no token.
//
// If a client uses an id again on one connection, which JSON-RPC lets it do once it has the
// answer, both requests are in one trace. Requests of hosts to clients are not traced, nor
// is what relay and host-agent ask by themselves.
package tracing
