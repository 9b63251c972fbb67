// Package link implements the numbered, acknowledged streams between relays and
// host-agents that carry all other traffic. It does no network I/O: a [Bus] carries
// its packets.
//
// # Subjects
//
// All subjects of a host lie below ahp.v1.<tenant>.<host>., which is all that the
// credentials of its host-agent allow. See [HostPrefix].
//
// # Links
//
// A [Link] joins one run of a relay to one run of a host-agent. Both processes have a
// random instance name, so that a restarted process is never taken for its previous run:
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
// The relay repeats its hello until the host-agent answers. The fence is the number of
// the host's newest lease. A host-agent with an older lease than the relay knows of does
// not answer, and asks the relays whether it still holds the host; a relay refuses a
// welcome with an older lease. A higher epoch replaces the previous link and everything on
// it.
//
// Each direction numbers its data packets from 1. The receiver accepts packets in order
// and once each. It reports a gap by an ack with the gap flag, and the sender resends
// from there. Core NATS may lose messages but never reorders those of one connection, so
// the receiver drops packets after a gap instead of keeping them. An ack carries three
// numbers: the packets that its sender has released, the packets that it has, and the
// last packet that it has sent. The last number reveals a lost final packet. Acks are sent
// as a heartbeat every 2 s, as a probe when a packet stays unreleased for 500 ms or the
// peer's heartbeat is 500 ms late, and as a probe after each reconnect. A cut shorter than
// the resume window (15 s) thus heals in time, whichever end noticed it. A peer that is
// silent for 18 s is lost.
//
// A host-agent knows relays by the key that its token names, and checks a tag on each of
// their packets. A relay knows a host-agent by its subject, on which NATS lets only that
// host-agent publish. The operator of the NATS servers can therefore pose as a host, but
// not as a relay.
//
// The content of packets is a [Traffic], which package routing implements. The link asks
// it for the next payload when the window has room, so that small records that are ready
// together travel together.
//
// # What an attacker can do
//
// With stolen NATS credentials of a host-agent and their private nkey: the same as that
// host-agent, for the 15 minutes of the credentials or until its enrolment is revoked. The
// attacker can read and forge the host's messages to clients, hold or give up its lease,
// and read the messages of clients. The attacker cannot open a link to the host or add to
// one. The tenant's account opens nothing else: no subject of a different host, no inbox of
// a relay, no JetStream, no import or export, and nothing of other tenants.
//
// As a NATS server outside of the relays: read and drop everything in every account, forge
// a host's messages, bodies and leases, and so pose as any host to clients. It can send
// nothing to a host.
//
// With the keys of relays: everything.
//
// # Concurrency
//
// [RelayLink] and [AgentLinks] each have a reader and a writer goroutine, both within
// Run. A slow network stops the writer only.
package link
