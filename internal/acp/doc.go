// Package acp implements the Agent Client Protocol: its types, and a connection between
// a client and an agent. Both ends use it: agenthost/acp is a client which starts
// agents, and ahp-connect is an agent started by editors.
//
// # Wire
//
// A message is a JSON-RPC 2.0 object on one line. Both ends send requests; each
// direction has its own ids. An id is a number, a string or null, and the answer
// repeats it unchanged. There are no batches.
//
// # Types
//
// types.go is generated from the official schema by the command schema. The alternative
// was the module github.com/coder/acp-go-sdk. It rejects a message with an unknown
// variant of a union, and ends a connection with 1024 unread notifications, so a newer
// or faster agent would break a session. Its types are nine times as long. In types.go:
//
//   - A union is one struct with the members of all variants, and the member which
//     selects the variant. Unknown variants can be read.
//   - The updates of a session use equal names with different types.
//     [SessionNotification] therefore keeps the update as JSON; [UpdateKind] and
//     [Decode] read it.
//   - Enumerations are strings, with constants.
//   - Members that neither end uses are absent: the command schema lists them.
//   - [Decode] omits a member of a wrong type and reads the others, as the schema
//     demands.
//
// The types describe version 1 with its unstable additions. Version 2 is a draft.
//
// # Bounds
//
// A line has at most [Limits.Line] bytes. A longer line is skipped; if it was a
// request, the peer gets an error, and if it was an answer, its call returns an error.
// Lines which are no messages are skipped and counted. While [Limits.Requests] requests
// of the peer are unanswered, each further request gets an error. The connection ends if
// more than [Limits.Queue] bytes wait for the peer.
package acp

//go:generate go run ./schema
