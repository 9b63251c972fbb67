// Package load runs several AHP clients on one busy chat, and judges the
// frames that they received.
//
// A [Driver] at the host itself keeps a turn going in the chat. [Viewer]s
// reach the host through the system under test. They behave like stock
// clients: they send actions and requests all the time, return with reconnect
// and back-off when their connection ends, start from a new snapshot when the
// host no longer knows them, and give up a connection that is silent for
// [SilenceLimit].
//
// # The judge
//
// The host records the frames that it received and sent on each connection
// (hostrecord.To), and so does each viewer. [Crowd.Finish] compares both
// records, connection by connection and byte for byte, in both directions: the
// frames received must be a prefix of the frames sent, and all of them if the
// connection was still open at the end. In addition, across its connections a
// viewer must have applied every action of its channels once, in the order of
// serverSeq, and its state must equal the host's after the last of them: that
// of a fresh snapshot, with the actions that the host sent after the snapshot.
//
// Frames in flight when a connection ends are lost to that connection, and
// recovered by reconnect; they are counted, but they are no fault.
package load
