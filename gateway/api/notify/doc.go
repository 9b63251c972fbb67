// Package notify serves the events of hosts, the notification settings and the answers
// over HTTP.
//
// # The flow
//
//	GET  /api/events          a stream of the events that a token may see (notify.Board), from the client's last event
//	     /api/notify/…        the notification settings (notify.Notifier)
//	POST /api/answers/{id}    an answer to an event, by a token or by a capability
//	                            → answer → notify.Receiver → the host-agent, which applies it once
//
// A capability is signed by the relay's keys and is part of a notification:
// [API.Capability] makes it, and readCapability returns its person's current
// authority.
//
// # State
//
// The package owns the event streams, counted by subject. Events and settings belong
// to gateway/notify.
//
// # Concurrency
//
// An [API] is safe for concurrent use after Start. The lock of the streams guards
// their counts; no callback runs while it is held.
package notify
