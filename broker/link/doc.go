// Package link implements the numbered, acknowledged streams between relays and
// host-agents that carry all other traffic. It does no network I/O: a [Bus] carries
// its packets.
//
// # Subjects
//
// All subjects of a host begin with ahp.v1.<tenant>.<host>., and the credentials of its
// host-agent permit no other subjects. See [HostPrefix].
//
// # Links
//
// A [Link] joins one relay process to one host-agent process. Each process has a random
// instance name, so that peers do not mistake a restarted process for its predecessor:
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
// The relay repeats its hello until the host-agent answers. The fence is the number of the
// host's newest lease. If the relay knows a newer lease than the host-agent has, the
// host-agent does not answer, and asks the relays whether it still holds the lease. A relay
// refuses a welcome with an older lease than it knows. A hello with a higher epoch replaces
// the previous link and all its connections.
//
// Each direction numbers its data packets from 1. The receiver accepts packets in order and
// once each. When a packet is missing, the receiver sends an ack with the gap flag, and the
// sender resends from the missing packet on. The receiver drops packets after a gap instead
// of storing them: core NATS may lose messages but never reorders those of one connection,
// so the missing packet will not come late. An ack carries three numbers: up to which
// packet its sender has released, up to which it has received, and the last packet that it
// has sent. The last number reveals that a final packet was lost. An end that sends nothing
// else sends an ack as a heartbeat every 2 s. It probes the peer when a packet stays unreleased
// for 500 ms, when the peer's heartbeat is 500 ms late, and after each reconnect. Either end thus notices a
// cut that is shorter than the resume window (15 s) in time to repair it. A peer that is
// silent for 18 s counts as lost.
//
// A host-agent's token contains the public key of the relays. With it the host-agent
// authenticates relays, and it checks the tags of their packets. A relay authenticates
// a host-agent only by its subject, because NATS lets no other host-agent publish there.
// The operator of the NATS servers can therefore impersonate a host, but not a relay.
//
// A [Traffic] produces and handles the content of packets; package routing implements it.
// The link asks it for a payload only when a packet can leave at once, so small records
// that are ready by then share a packet. While the window is full, only records that the
// peer needs in order to release packets may leave.
//
// # What an attacker can do
//
// With the stolen NATS credentials and private nkey of a host-agent, an attacker can do
// what that host-agent can, until the credentials expire (15 minutes) or its enrolment is
// revoked: read and forge the host's messages to clients, hold or give up its lease, and
// read the messages of clients. The attacker cannot open a link to the host or add packets
// to one. The credentials permit nothing else in the tenant's account: no subjects of
// different hosts, no inboxes of relays, no JetStream, no imports or exports; and nothing
// in accounts of other tenants.
//
// An attacker who controls a NATS server outside of the relays can read and drop everything
// in every account, and forge a host's messages, bodies and leases, and so impersonate any
// host to clients. The attacker can send nothing to a host.
//
// An attacker with the keys of the relays can do everything.
//
// # Concurrency
//
// [RelayLink] and [AgentLinks] each have a reader and a writer goroutine, both within Run.
// A slow network blocks only the writer.
package link
