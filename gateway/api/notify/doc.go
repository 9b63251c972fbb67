// Package notify is how people hear, over HTTP, of what happens at their hosts, and answer
// it.
//
// # The flow
//
//	GET  /api/events          a stream of what a token may hear (notify.Board), from the last event that was had
//	     /api/notify/…        in what ways somebody is told who looks at nothing (notify.Teller)
//	POST /api/answers/{id}    an answer to an event, by a token or by a capability
//	                            → answer → notify.Receiver → the host-agent, which gives it once
//
// A capability is signed by the relay's keys and comes with a notification: [API.Capability]
// makes it, and readCapability says for whom it stands now.
//
// # What it owns
//
// The streams of events, counted by subject, and when they are to end. The events themselves,
// and what people have set, are package notify's.
//
// # Concurrency
//
// An [API] is safe for concurrent use once it was started. The lock of its streams guards how many
// there are; nothing is called under it.
package notify
