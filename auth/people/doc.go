// Package people knows who may use a tenant's hosts: people, the devices that
// act for them, and what is being asked for, until somebody says yes.
//
// # People and devices
//
// A [Person] has a name (the subject of tokens) and what they may do. A [Device] is
// a key of theirs, and no secret of the relay's: it proves the key, and gets
// tokens that are good for [AccessTTL] and only with that key (package auth,
// dpop.go). What it may do is what its person may at that moment.
//
// # Coming in
//
// Nobody has a password. A device comes in by
//
//   - an [Invite], a secret in a link, good once: for the owner of a new relay, or who
//     has lost the last device (relay setup-link), or for somebody else whom the owner
//     invites. The first who opens it has it;
//   - a [Request] that somebody who is in approves (RFC 8628): what asks shows a code, and
//     who approves types it where they are signed in. A host-agent asks so for its
//     credential, too;
//   - a sign-in at an identity provider of the relay's ([Directory.SignIn]): what its person may is what
//     the relay's rules say of them at each moment.
//
// A request is good for [RequestTTL]. Who approves sees what asks, from where, and the fingerprint
// of its key, which the other side shows too. A link to a request does not have the code: it
// is typed from there, so who sends somebody a link gets nothing. Of a code, [MaxTries] tries
// are possible; then the request is over.
//
// # Records
//
// All of it is in a [Store], records of JSON by their key, each changed alone and as a whole.
// registry.Records is one that all relays have together; [FileStore] is one in a file, of one
// relay.
package people
