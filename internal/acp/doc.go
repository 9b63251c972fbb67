// Package acp is the Agent Client Protocol: its types, and a connection over which a
// client and an agent exchange messages. Both ends use it: agenthost/acp is a client
// that starts agents, and ahp-connect is an agent that editors start.
//
// # Wire
//
// A message is a JSON-RPC 2.0 object on one line. The directions have separate ids. An
// id is a number, a string or null, and is answered as it came. Requests run in both
// directions. There are no batches.
//
// # Types
//
// types.go is generated from the official schema by the command schema. The module
// github.com/coder/acp-go-sdk was the alternative. It refuses a message with an unknown
// variant of a union, and ends a connection with 1024 unread notifications, so a newer
// or faster agent would break a session. Its types are nine times as long. Here:
//
//   - A union is one struct with the members of all variants, and the member that
//     selects the variant. An unknown variant is readable.
//   - The updates of a session share names with different types. [SessionNotification]
//     therefore keeps the update as text; [UpdateKind] and [Decode] read it.
//   - Texts with known values are strings, with constants.
//   - [Decode] follows the schema in case of a wrong type: the member is left out and
//     the rest is read.
//
// The types describe version 1 with its unstable additions. Version 2 is a draft.
//
// # Bounds
//
// A line has at most [Limits.Line] bytes. A longer one is skipped; a skipped request
// gets an error, and a skipped response ends its call with one. Lines that are not
// messages are counted and skipped. At most [Limits.Requests] requests of the peer wait
// for an answer, and at most [Limits.Queue] bytes wait for the peer to read; more ends
// the connection.
package acp

//go:generate go run ./schema
