// Package notify serves hosts' events, notification settings and answers over HTTP.
//
// # The flow
//
//	GET  /api/events          a stream of the events that a token may see (notify.Board), from the client's last event
//	     /api/notify/…        the notification settings (notify.Notifier)
//	POST /api/answers/{id}    an answer to an event, by a token or by a capability
//	                            → answer → notify.Receiver → the host-agent, which applies it once
//	POST /api/letters/{way}   a device's encrypted answer to a sealed host
//
// A capability is part of a notification, and is signed with the relay's keys. [API.Capability]
// makes it, and readCapability returns its person's current authority.
//
// # State
//
// The package owns the event streams, counted by tenant and subject. gateway/notify owns the events and
// settings.
//
// # Concurrency
//
// An [API] is safe for concurrent use after Start. The lock of streams guards the counts; no
// callback runs while it is held.
package notify
