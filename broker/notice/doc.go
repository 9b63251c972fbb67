// Package notice defines the events that host-agents report to relays for people who
// are not looking: an agent needs a person, is done, or has failed. It does no I/O.
//
// # Events
//
// An [Event] is reported once. An event that needs a person ([Kind.Needs]) stays open
// until it is answered, and is then withdrawn. Its ID follows from the session and the
// host's name of the question, so it is equal for every reporter and after any
// restart. Other events are over at once and have random IDs.
//
// # Reports
//
// A host-agent sends its events in a [Report], a NATS request on
//
//	ahp.v1.<tenant>.<host>.ctl.notice
//
// to every relay. It contains the IDs of all open events, and the events that no relay
// has confirmed. The next report therefore repairs a lost one, a repeated report
// changes nothing, and an ID missing from a newer report means a withdrawn event.
// Reports of an instance are numbered, and an old report is ignored.
//
// A relay answers with an [Ack] when it has stored the events; the first answer
// counts. A relay that lacks an open event asks for all of them. A host-agent sends a
// report after each change, repeats it until a relay answers, and sends one
// periodically while events are open, for new relays.
package notice
