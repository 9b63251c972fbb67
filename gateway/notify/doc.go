// Package notify keeps the events of hosts (package notice) at a relay, and sends
// notifications about them.
//
// A [Board] holds events in memory. Host-agents report events to all relays that have opened
// their tenant's NATS account. A relay opens the account when a client asks for events, and
// requests the open events from the other relays ([Exchange]). Each change is an [Item] with a
// number. The latest 4,096 items in each tenant are kept, so that a follower can ask for all
// items after a number. Numbers are local to a relay: a client that comes from another relay,
// or too late, receives all open events.
//
// # Notifications
//
// A [Notifier] sends notifications to the targets that people have set. Settings, the relays'
// keys for push services and pending notifications are [Records], shared by all relays of a
// cluster (package store):
//
//	notify.<tenant>.<SHA-256 of subject>   Person
//	push.keys                              a list of PushKey; browsers subscribe with the first
//	public.url                             the learned public URL, see publicurl.go
//	job.<event>.<target>[.w]               a job, see queue.go; .w reports the end of the event
//	job.test.<random>                      the outcome of a test
//
// Each kind of [Target] is a service with a file of its own: webpush.go, ntfy.go, slack.go,
// webhook.go and mail.go.
//
// # Permissions
//
// [MayHear] decides whether a token may see an event: the token must include the host. For an
// event of a session, it must permit listing sessions and, if it names channels, include the
// session. An event can be for one subject only; then it is not for tokens with the level look. Sessions that the host's owner hides are never
// reported by the host-agent.
package notify
