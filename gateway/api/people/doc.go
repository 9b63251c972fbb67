// Package people is how people and their devices come in, over HTTP, and see to who else does
// (package people).
//
// # The flow
//
// A device proves its key with each request: the header DPoP, see package auth. Errors of
// /auth are {"error", "error_description"} (RFC 6749), with 401 and error
// use_dpop_nonce where the proof wants the nonce of the header DPoP-Nonce.
//
//	POST /auth/setup   {"invite", "name"} → Access; who has the link of an invitation
//	POST /auth/device  form: kind=device|host, name, machine, user, key, tenant → DeviceCode (RFC 8628, section 3.1); with a tenant, people of that tenant alone may approve
//	POST /auth/token   form: grant_type=device, device → Access
//	POST /auth/token   form: grant_type=urn:ietf:params:oauth:grant-type:device_code, device_code → Access, or Credential with the host
//
// What follows wants a token of a device, or any that owns the tenant where nothing else is
// said. Errors are {"error"}.
//
//	GET    /api/me                who this is, what it may, and its hosts' names
//	GET    /api/devices           [ShownDevice]: one's own, all for who owns the tenant
//	DELETE /api/devices/{id}      ends it, and everything that was derived from it; ?derived=keep: only its tokens and links
//	GET    /api/requests/{which}  Waiting; by its ID, or its whole code
//	POST   /api/requests/{id}     {"approve", "code", "host", "replace", "level"} → {}; level is for a device, and at most that of who approves, the default
//	POST   /api/invites           {"subject", "level", "hosts"} → {"link", "qr", "expires"}; without subject a link to where another device of one's own asks to be let in
//	GET    /api/invites           those that are open, see invites.go
//	DELETE /api/invites/{id}      withdraws one
//	POST   /api/tokens            {"level", "hosts", "channels", "seconds"} → {"token", "id", "expires"}: for a stock client
//	POST   /operator/invites      {"tenant", "subject"} → {"link", "expires"}: relay setup-link
//
// Links to sessions are in shares.go and agentshares.go, signing in at an identity provider in
// signin.go, what the owner of a tenant sees to in team.go, and the pages themselves in pages/.
//
// # What it owns
//
// How many codes were wrong, and who asked how often to be let in. All else is package people's
// (people.Directory), which relays have together, and what they know to be revoked: who removes a device or takes a
// link back revokes it first, so that it is out even if the record stays.
//
// # Concurrency
//
// An [API] is safe for concurrent use, and has no lock of its own. Its only goroutine is
// [API.EndGrants], which its caller starts.
package people
