// Package notice is what host-agents tell relays that people may want to know
// while they look at nothing: that an agent needs somebody, is done, or has failed.
// It does no I/O.
//
// # Events
//
// An [Event] is told once. One that needs somebody ([Kind.Needs]) stays open until
// somebody has answered, and is then withdrawn; its ID follows from the session and
// from the host's own name of the question, so it is the same whoever tells it, and
// after any restart. Others are over when they are told, and their IDs are random.
//
// # Reports
//
// A host-agent tells its events in a [Report], a NATS request on
//
//	ahp.v1.<tenant>.<host>.ctl.notice
//
// which every relay hears. It has the ids of all events that are open, and those
// events, open or over, that no relay has confirmed. So a report that is lost is
// made good by the next, one that comes twice changes nothing, and what is not in
// the list of a newer report was withdrawn. Reports of an instance are numbered,
// and an older one than was heard says nothing.
//
// A relay answers with an [Ack] when it has what it was told, as safe as it keeps
// things; the first answer counts. One that does not know an open event asks for
// all of them. A host-agent sends reports when something has changed, again until
// one is answered, and every now and then while anything is open, for relays that
// have come later.
package notice
