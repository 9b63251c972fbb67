// Package notify is what a relay knows of events (package notice): which are open,
// what has just happened, and who may hear of it.
//
// A [Board] has the events of hosts in memory. A host-agent tells the relays that have its
// tenant's account open; one where somebody wants to know opens it, and asks the others
// for what is open ([Exchange]). Each change is an [Item] with a number, and the latest 4,096 of each tenant are kept
// for followers, who ask for what came after a number. The numbers are the relay's
// own: whoever comes from another relay, or too late, is told what is open now.
//
// # Telling
//
// A [Teller] tells people, in the ways that they have set. What they have set, the
// relays' keys for push services, and what is to be told, are [Records] that all
// relays of a cluster share (package store):
//
//	notify.<tenant>.<SHA-256 of subject>   Person
//	push.keys                              the PushKeys; browsers subscribe to the first
//	job.<event>.<way>[.w]                  a job, see queue.go; .w tells that the event is over
//	job.test.<random>                      the outcome of a test
//
// # Who may hear
//
// [MayHear] says whether a token may: that is for the host, and lets its owner list
// sessions; and, if it names channels, takes the session. What the host's owner
// lets nobody see, the host-agent does not tell.
package notify
