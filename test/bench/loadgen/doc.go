// Package loadgen is what loads the programs that a benchmark measures: hosts,
// clients, and a server to compare with. It costs as little processor time as
// it can, and looks at every byte: a frame that is missing, repeated or changed
// is an error.
//
// # Roles
//
// Each role is a process of its own, so that its processor time is apart from
// that of what it loads. [Start] starts one and returns a [Process], whose
// methods are called by net/rpc over its standard input and output:
//
//   - [Host] is an AHP host that says what it is told to, on the connections
//     of all clients, and answers reads of any size. It can say the same to
//     NATS, or to a Writer.
//   - [Clients] are many readers with little work for each frame, and callers
//     that ask something and wait for the answer.
//   - [Writer] is what a relay would be that writes each message to each
//     client by itself: one Write of coder/websocket each.
//
// # Actions
//
// What a host says on a channel is one action after the other, all of one
// size:
//
//	{"jsonrpc":"2.0","method":"action","params":{"channel":C,"serverSeq":S,
//	"action":{"type":"chat/delta","turnId":"turn-1","n":N,"at":T,"content":"…"}}}
//
// N counts the actions of that channel, T is when it was said (Unix
// nanoseconds), and the text follows from N. So a client knows each byte of
// the next action but S and T.
//
// # Progress
//
// Clients count what they have got in a piece of memory that the host sees too
// ([Counters]), so that it can send as fast as they take and no faster, and
// knows when all is there.
package loadgen
