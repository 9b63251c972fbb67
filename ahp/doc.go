// Package ahp is the vocabulary of the Agent Host Protocol (AHP) for a relay: it reads
// a frame's envelope, builds responses in a host's place, and defines names, codes and
// the method table. It does no I/O of its own, and never changes a frame.
//
// # Frames
//
// AHP is JSON-RPC 2.0 over WebSocket. A text frame is a message, a single JSON object
// (RFC 8259), and [Peek] reads its envelope:
//
//	{"jsonrpc":"2.0","id":7,"method":"subscribe","params":{"channel":"ahp-root://"}}
//
//	key        read as
//	id         number, string or null; kept as its raw bytes
//	method     string
//	params     object, array or null; kept raw
//	result     any value; kept raw
//	error      any value; kept raw
//	channel    string, an AHP channel URI: the message's destination
//
// The channel is params.channel. On mcp:// channels, which carry a different
// protocol's messages verbatim, it stands at the top level instead, in responses too.
// Both places may have it, if they are equal.
//
// A frame's kind follows from its keys:
//
//	method   id       result, error   kind
//	yes      yes      neither         request ("id":null included)
//	yes      no       neither         notification
//	no       yes      exactly one     response ("id":null answers a frame without a readable id)
//	anything else                     refused
//
// jsonrpc is not read: public clients omit it, and public hosts do not require it.
// Every other key and value is validated as JSON, and otherwise passes unread, unknown
// methods and fields included.
//
// # Refused frames
//
// A check is only as good as its parser: if the relay and the host read different
// channels from a frame, a client could reach a channel outside its token. Therefore,
// everything that two careful parsers could read differently is refused with close
// code 4500 ([CloseBadMessage]) before a host sees it:
//
//   - a frame that is not exactly one JSON object with JSON white space around it: an
//     array (a JSON-RPC batch), a byte order mark, trailing bytes;
//   - anything outside RFC 8259, at any depth: single quotes, comments, trailing commas,
//     NaN, 01, control characters in strings, ...;
//   - invalid UTF-8, at any depth;
//   - more than [MaxDepth] nested objects and arrays;
//   - a duplicate of a key in the table above, where Peek reads that key;
//   - different channels at the top level and in params;
//   - a value whose type differs from the table above. A null params passes as if
//     absent, since JSON-RPC libraries write it; other scalars are invalid (JSON-RPC
//     2.0, section 4.2);
//   - a lone surrogate escape ("\ud800"), which parsers decode differently, in decoded
//     text: the keys of an object whose members are read, and the strings among these
//     members.
//
// Keys are compared exactly, after their escapes are decoded: "\u0069d" is id, "ID" is
// not. A frame with a key like "ID" passes, but is marked ([Envelope].Misspelt): hosts
// in Go or .NET may read it as id. [Spelt] refuses such keys.
//
// Every refusal is a [*FrameError]. It has the offset and the rule, and quotes nothing
// from the frame.
//
// # Methods
//
// [ReadInitializeResult] reads the few fields that a host-agent needs from an [Envelope]'s
// raw result, under the same rules. It uses [Members]; [AllMembers] is for objects with
// unknown keys. Actions are so frequent that [Peek] reads their params too, see [Said].
//
// # The table
//
// [ClientMethods], [MCPMethods], [HostMethods] and [Actions] are the one table of methods
// and actions: each row has everything a relay must know about a method. [Level] names
// the access levels, and a [Shape] describes the parts of a message that a limited
// client may see.
//
// # Ids
//
// A request and its response carry the same id, but a host may rewrite it: 1.0 may
// come back as 1, "\u0061" as "a". [SameID] compares ids as a JavaScript host would.
// Each direction has its own ids, and an id may be a string.
//
// # Responses
//
// [AppendResult] and [AppendError] build the relay's own responses. AHP's error codes
// stand beside JSON-RPC's; the relay's own are outside both ranges.
//
// # Concurrency and ownership
//
// All functions are safe for concurrent use. Unless documented otherwise, results
// alias the arguments. The package never writes to these bytes, and neither does an
// append to a returned slice.
package ahp
