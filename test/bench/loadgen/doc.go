// Package loadgen generates the load for benchmarks: hosts, clients, and a
// server to compare with. It uses as little processor time as possible, and
// checks every byte: a missing, repeated or changed frame is an error.
//
// # Roles
//
// Each role runs in its own process, so that its processor time is separate
// from that of the measured program. [Start] starts a role and returns a
// [Process]; its methods are called by net/rpc over standard input and output:
//
//   - [Host] is an AHP host that streams on request to all clients'
//     connections, and answers reads of any size. It can also stream to NATS
//     or to a Writer.
//   - [Clients] are many readers with little work for each frame, and callers
//     that send a request and wait for its response.
//   - [Writer] is a minimal relay that writes each message to each client
//     separately, with coder/websocket's Write.
//
// # Actions
//
// A host streams actions on a channel, all of the same size:
//
//	{"jsonrpc":"2.0","method":"action","params":{"channel":C,"serverSeq":S,
//	"action":{"type":"chat/delta","turnId":"turn-1","n":N,"at":T,"content":"…"}}}
//
// N counts the channel's actions, T is the time of sending (Unix nanoseconds),
// and the text follows from N. So a client knows each byte of the next action
// except S and T.
//
// # Progress
//
// Clients count received frames in memory that they share with the host
// ([Counters]). So the host can send exactly as fast as they read, and knows
// when everything has arrived.
package loadgen
