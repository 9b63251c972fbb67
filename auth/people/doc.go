// Package people stores the people who may use a tenant's hosts, their devices, and
// requests for access.
//
// # People and devices
//
// A [Person] has a name (the subject of tokens) and authority. A [Device] is a key that
// belongs to a person; the relay has no secret in common with it. The device proves the
// key, and gets tokens that are valid for [AccessTTL], and only together with that key
// (package auth, dpop.go). A device has its person's current authority.
//
// # Entry
//
// There are no passwords. A device gets access by
//
//   - an [Invite], a secret in a link, valid once. It is for the owner of a new relay,
//     for an owner who has lost all devices (relay setup-link), or for a person whom the
//     owner invites. It belongs to the first device that opens it;
//   - a [Request] approved by a signed-in person (RFC 8628). The new device shows a
//     code, and the person types it on a signed-in device. A host-agent requests its
//     credential in the same way;
//   - a sign-in at one of the relay's identity providers ([Directory.SignIn]). The
//     relay's rules decide about the person's authority whenever it is needed.
//
// A request expires after [RequestTTL]. The approving person sees the device, its
// address, and its key's fingerprint, which the device shows too. A link to a request
// does not contain the code, which the person must copy from the device. So a link sent
// by an attacker is useless. After [MaxTries] wrong codes, the request ends.
//
// # Records
//
// All data are JSON records in a [Store]. Each change replaces one record as a whole. The
// store in broker/store is shared by all relays.
package people
