// Package ahp is the vocabulary of the Agent Host Protocol (AHP) as a relay
// needs it: reading the envelope of a frame, answering for a host, names and
// codes. It does no I/O, and never changes a frame.
//
// # A frame
//
// AHP is JSON-RPC 2.0 over WebSocket. One text frame is one message, one JSON
// object (RFC 8259), and [Peek] reads its envelope:
//
//	{"jsonrpc":"2.0","id":7,"method":"subscribe","params":{"channel":"ahp-root://"}}
//
//	key        read as
//	id         number, string or null; kept as its raw bytes
//	method     string
//	params     object, array or null; kept raw
//	result     any value; kept raw
//	error      any value; kept raw
//	channel    string, an AHP channel URI: where a message belongs
//
// The channel is params.channel. On mcp:// channels, which carry messages of
// another protocol verbatim, it stands at the top level instead, in responses
// too. Both places may hold it, if they hold the same.
//
// The kind of a frame follows from the keys that it has:
//
//	method   id       result, error   kind
//	yes      yes      neither         request ("id":null included)
//	yes      no       neither         notification
//	no       yes      exactly one     response ("id":null answers a frame that had no readable id)
//	anything else                     refused
//
// jsonrpc is not read: public clients omit it, and public hosts do not ask for
// it. Every other key and value is checked to be JSON, and otherwise passes
// uninterpreted, methods and fields that nobody has heard of yet included.
//
// # What is refused
//
// A check is only as good as its parser: where the relay read one channel and
// the host another, a client could address what its token does not allow. So
// whatever two careful parsers might read differently is refused with close
// code 4500 ([CloseBadMessage]) before a host sees it:
//
//   - what is not exactly one JSON object with JSON white space around it: an
//     array (a JSON-RPC batch), a byte order mark, trailing bytes;
//   - anything that RFC 8259 does not allow, at any depth: single quotes,
//     comments, trailing commas, NaN, 01, control characters in strings, ...;
//   - invalid UTF-8, at any depth;
//   - more than [MaxDepth] nested objects and arrays;
//   - a second occurrence of a key that is read, at the place where it is read;
//   - a channel at the top level and another one in params;
//   - a key that is read whose value has another type than the table says. A
//     params that is null passes as if absent, since JSON-RPC libraries write
//     that; other scalars are no params (JSON-RPC 2.0, section 4.2);
//   - a lone surrogate escape ("\ud800"), which parsers turn into different
//     text, wherever text is decoded: in the keys of an object from which
//     members are read, and in the strings that are read.
//
// Keys are compared after their escapes are decoded, and exactly: "\u0069d" is
// id, "ID" is not. A frame that has a key such as that passes, but says so
// ([Envelope].Misspelt): hosts in Go or .NET may take it for id. [Spelt] refuses
// such keys.
//
// Every refusal is a [*FrameError]. It tells the offset and the rule, and
// quotes nothing from the frame.
//
// # More of a few methods
//
// [ReadInitializeParams], [ReadInitializeResult] and [ReadReconnectParams] read
// the few fields that a relay needs from the raw params or result of an
// [Envelope], under the same rules. [Members] is what they are made of;
// [AllMembers] is for objects whose keys are not known. Of actions there are so
// many that [Peek] reads their params too, see [Said].
//
// # Ids
//
// A request and its response carry the same id, but a host may write it
// anew: 1.0 may come back as 1, "\u0061" as "a". [SameID] compares ids as a
// JavaScript host would. The two directions of a connection have separate id
// spaces, and an id may be a string.
//
// # Answers
//
// [AppendResult] and [AppendError] build the responses that a relay gives
// itself. AHP error codes stand with the JSON-RPC ones; those of the relay's
// own are outside both ranges.
//
// # Concurrency and ownership
//
// All functions may run at once. What they return aliases the bytes that they
// were given, unless they say otherwise; nothing writes to those bytes, and
// appending to a returned slice does not either.
package ahp
