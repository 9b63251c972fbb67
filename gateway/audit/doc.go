// Package audit writes down who did what at a relay: one log line each, with the message "audit" and
// these fields, of which those that do not apply are left out.
//
//	event    what happened, see below
//	tenant   of the host, subject or token
//	host     by name
//	subject  who: of a client's token
//	token    its ID (jti), never the token itself
//	device   whose token it is (package people)
//	conn     id of the connection, as in all other lines
//	address  where it came from, see TrustProxy of the relay's configuration
//	code     close code of a client's connection
//	reason   why, for people
//	detail   more of it: what was shared or revoked, what a connection carried
//	count    the line stands for so many that were alike; without it, for one
//
// The events:
//
//	connect       a client was let in
//	disconnect    and is gone
//	refuse        a request, a client or a host-agent was not let in
//	host-connect, host-disconnect   the same of host-agents that come over /nats
//	enrol         a host-agent got credentials for NATS
//	share         relay share made a link
//	revoke        relay revoke, or a person, took something back
//	setup         somebody was let in by a link, with a new device
//	device        a device was approved
//	deny          a request to be let in was refused
//	token         a device made a token for another client
//	expire        a link, or an invitation that nobody has used, was over
//
// Lines go to the log, and as JSON to a file, if there is one: a chain, each line of which
// has the hash of the one before ([File], [Read]).
//
// # What it owns
//
// A [Log] owns the last lines of all tenants, for who owns one and looks at them (latest), and the counts of lines that
// are alike, so that no source fills a disk (package coalesce). A [File] owns the end of its chain.
//
// # Concurrency
//
// Both are safe for concurrent use. The locks, of the last lines and of the file, are each held for one line, and
// nothing is called under them. Log.Run writes what was counted, and is its caller's goroutine.
package audit
