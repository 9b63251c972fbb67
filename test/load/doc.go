// Package load is several AHP clients on one busy chat, and the judge of what
// they got.
//
// A [Driver] at the host itself keeps a turn going in the chat. [Viewer]s
// reach the host through whatever is being tested. They behave like stock
// clients: they send actions and requests all the time, come back with
// reconnect and back-off when their connection ends, begin anew when the host
// does not know them any more, and give up a connection that is silent for
// [SilenceLimit].
//
// # The judge
//
// The host keeps what it received and sent on each connection
// (refhost.RecordTo), each viewer what it sent and received. [Judge] compares
// the two, connection by connection and byte for byte, in both directions:
// what arrived must be a beginning of what was sent, and all of it where the
// connection was open in the end. Beyond that, across its connections a viewer
// must have applied every action of its channels once, in the order of
// serverSeq, and its state must be that of a fresh snapshot.
//
// Frames in flight when a connection ends are lost to that connection, and
// recovered by reconnect; they are counted, and no fault.
package load
