// Package link has the numbered, acknowledged streams between relays and
// host-agents over which everything else travels. It knows no network: a [Bus]
// carries what it says.
//
// # Subjects
//
// All subjects of a host lie below ahp.v1.<tenant>.<host>., which is what the
// credentials of its host-agent allow and nothing else. See [HostPrefix].
//
// # Links
//
// A [Link] joins one run of a relay to one run of a host-agent. Both processes
// have a random instance name, so that a restarted one is never taken for its
// former self:
//
//	relay                                      host-agent
//	  hello {epoch, versions, bounds, fence} ── down ──▶
//	  ◀── up ── challenge; the relay proves itself, see linkauth.go
//	  ◀── up ── welcome {epoch, version, bounds, fence}, or refuse {reason}
//	  data 1, 2, 3 …                  ── down ──▶
//	  ◀── up ── data 1, 2, 3 …
//	  ack {released, have, last}      ◀── both ──▶
//	  bye {reason}                    ◀── either
//
// The relay repeats its hello until it is answered. The fence is the number of the
// host's newest lease: a host-agent that has an older one than the relay knows of does
// not answer, and asks relays whether it still has the host; a relay takes no welcome of
// such a one. A higher epoch replaces
// the link of before and all that it carried. Each direction numbers its data
// packets from 1. The receiver takes them in order and once each; it reports a
// gap by an ack with the gap flag, and the sender sends again from there.
// Core NATS may lose messages but, of one connection, never reorders them:
// what comes after a gap is therefore dropped, not kept. An ack tells how far
// the sender of the ack needs nothing more ("released"), how far it has got
// everything ("have"), and what it has sent ("last"), so that the loss of the
// last packet is noticed too: by the heartbeat every 2 s, by a probe when
// something stays unreleased for 500 ms or the peer's heartbeat is 500 ms late,
// and by a probe after each reconnect. So a cut shorter than the resume window
// (15 s) is over in time whoever knew of it; a peer that is not heard for 18 s
// is lost.
//
// A host-agent knows relays by their key, which its token names, and each of their
// packets by a tag. A relay knows a host-agent by the subject on which it
// publishes, where NATS lets nobody else: so whoever runs the NATS servers can
// pose as a host, but not as a relay.
//
// What a packet carries is the business of a [Traffic], which package routing
// implements: it is asked for the next payload when there is room in the
// window, so that small things which are ready together travel together.
//
// # What somebody can do who should not be there
//
// With stolen NATS credentials of a host-agent, and the private nkey that they
// are for: what that host-agent can, for the 15 minutes that they last, or until
// its enrolment is revoked. That is to read and forge what the host says to
// clients, hold or give up its lease, and read what clients say to it. It opens no
// link to the host and adds to none. In the tenant's account nothing else is open
// to it: no subject of another host, no inbox of a relay, no JetStream, no import
// or export; and nothing of other tenants is in that account at all.
//
// As a NATS server, one that is not embedded in a relay: read everything that
// passes, in every account, and drop it; forge what hosts say, bodies included,
// and leases; so pose as any host to clients. It cannot say anything to a host.
//
// With the keys of relays: everything.
//
// # Concurrency
//
// A [RelayLink], as [AgentLinks], has a reader and a writer goroutine, both
// within Run. A slow network stops the writer only.
package link
