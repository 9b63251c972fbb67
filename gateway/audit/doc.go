// Package audit writes the audit log of a relay: one log line per event, with the message
// "audit" and these fields. Empty fields are omitted.
//
//	event    the event, see below
//	tenant   of the host, subject or token
//	host     by name
//	subject  of the client's token
//	token    its ID (jti), never the token itself
//	device   the token's device (package people)
//	conn     id of the connection, as in all other logs
//	address  of the client, see TrustProxy of the relay's configuration
//	code     close code of a client's connection
//	reason   why, in words for people
//	detail   for example the shared or revoked scope, or a connection's traffic
//	count    the number of equal events in this line; without it, one
//
// The events:
//
//	connect       a client was admitted
//	disconnect    a client's connection ended
//	refuse        a request, a client or a host-agent was refused
//	host-connect, host-disconnect   a host-agent's connection over /nats began or ended
//	enrol         a host-agent got a credential, or credentials for NATS
//	share         a link or an invitation was made
//	revoke        a token, device, subject, host, link or invitation was revoked
//	setup         an invitation, or a sign-in at an identity provider, added a device
//	device        a device or host was approved
//	deny          a request for access was denied, or a code for it was wrong
//	token         a person made a token for another client
//	expire        a link, or an unused invitation, expired
//	canvas        a browser opened a canvas by URL
//	waiting       a person left an item for an offline host
//	wake          a person asked for a host to be woken
//	forget        the command "relay forget" was given for a host
//
// Lines are written to the log and, if configured, as JSON to a file. The file is a hash
// chain: each line contains the hash of the previous line ([File], [Read]).
//
// # State
//
// A [Log] holds the last lines of all tenants, to show them to tenants' owners, and
// counts equal events, so that no client can fill a disk (package coalesce). A [File]
// holds the last hash in its chain.
//
// # Concurrency
//
// Both are safe for concurrent use. The locks for the last lines and for the file are
// held while one line is processed, and no other call is made meanwhile. Log.Run writes
// the coalesced events, in its caller's goroutine.
package audit
