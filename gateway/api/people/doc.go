// Package people is the HTTP interface with which people and their devices sign in, and manage each
// other's access (package auth/people).
//
// # The flow
//
// A device proves its key with each request: the header DPoP, see package auth. Errors of /auth are
// {"error", "error_description"} (RFC 6749), with 401 and error use_dpop_nonce if the proof needs
// the nonce in the header DPoP-Nonce.
//
//	POST /auth/setup   {"invite", "name"} → Access; invite is the secret in an invitation's link
//	POST /auth/device  form: kind=device|host, name, machine, user, key, tenant → DeviceCode (RFC 8628, section 3.1); with a tenant, only people in that tenant may approve
//	POST /auth/token   form: grant_type=device, device → Access
//	POST /auth/token   form: grant_type=urn:ietf:params:oauth:grant-type:device_code, device_code → Access, or Credential with the host
//
// The following requests need a device's token, or a token that owns the whole tenant. Errors are
// {"error"}.
//
//	GET    /api/me                the caller's name, authority and hosts
//	GET    /api/devices           {"devices": [ShownDevice]}: the caller's own; for a tenant owner, all
//	DELETE /api/devices/{id}      removes a device and everything derived from it; ?derived=keep: only its tokens and links
//	GET    /api/requests/{which}  Waiting; by ID, or by whole code
//	POST   /api/requests/{id}     {"approve", "code", "host", "replace", "level"} → {}; level is for a device, at most the approver's, which is the default
//	POST   /api/invites           {"subject", "level", "hosts"} → {"link", "qr", "expires"}; without subject: a link with which the caller's next device requests access
//	GET    /api/invites           open invitations, see invites.go
//	DELETE /api/invites/{id}      withdraws an invitation
//	POST   /api/tokens            {"level", "hosts", "channels", "seconds", "program"} → {"token", "id", "expires"}: for a stock client
//	POST   /operator/invites      {"tenant", "subject"} → {"link", "qr", "expires"}; for the command "relay setup-link", with an operator's token only
//
// For links to sessions see shares.go and agentshares.go, for sign-in at an identity provider
// signin.go, for the management of a tenant team.go, and for the pages pages/.
//
// # What it owns
//
// An API counts wrong codes and requests for access. All other state is in people.Directory, which
// relays share, and in the relays' revocations. The removal of a device or link revokes it first,
// so it has no access even if its record could not be deleted.
//
// # Concurrency
//
// An [API] is safe for concurrent use, and has no lock of its own. Its only goroutine is
// [API.EndGrants], which its caller starts.
package people
