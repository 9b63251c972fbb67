// Package registry knows the hosts: who serves them, who may, and what is revoked.
//
// # Registry
//
// The lease says what host-agent instance serves a host, and ends by itself if
// it is not renewed. Host-agents ask a relay for it ([LeaseHolder],
// [Registry]). Every relay keeps the leases of all hosts, and what is known of
// those that nobody serves, in memory and in a file; relays tell each other
// below ahp.relays.v1 in their own account, where no host-agent can be. None needs another.
package registry
