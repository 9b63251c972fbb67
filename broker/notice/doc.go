// Package notice defines the events of which people are notified while they do not
// look at a session: an agent needs a person, has finished, or has failed. Host-agents
// report events to relays. The package does no I/O.
//
// # Events
//
// An [Event] is reported until a relay confirms it. An event which needs a person
// ([Kind.Needs]) stays open until it is answered, and is then withdrawn. Its ID is
// computed from the session and the host's name for the question, so every host-agent
// instance computes the same ID. All other events are closed from the start, and have
// random IDs.
//
// # Reports
//
// A host-agent sends its events in a [Report], a NATS request on
//
//	ahp.v1.<tenant>.<host>.ctl.notice
//
// to every relay. The report contains the IDs of all open events, and in full those
// events which no relay has confirmed yet. Each report thus also repairs the loss of
// an earlier one, and a repeated report changes nothing. If a newer report lacks an
// ID, that event was withdrawn. An instance numbers its reports; relays ignore older
// ones.
//
// A relay answers with an [Ack] when it has stored the events; the first answer
// counts. If the relay lacks an open event, it asks for all open events. A host-agent
// sends a report after each change, and repeats it until a relay answers. While events
// are open, it also reports periodically, for relays which have started since.
package notice
