// Package waiting holds the host-agent's lasting memory of the items that people leave
// while the host is away (package broker/waiting): the host's key, the keys of people's
// devices, and a journal.
//
// # The journal
//
// An entry is written durably before the step that it names, so each item is delivered at
// most once, even after a crash:
//
//	creating   a session is about to be created
//	sending    an action is about to be sent to the host
//	over       the result is known; relays may not have it yet
//
// If a host-agent finds an entry other than over after a restart, it asks the host whether
// the item arrived. If not, the result is [waiting.Unknown], with one exception: a session
// whose entry is creating may still get its first message. Once an item has an entry, no
// later version of the item is delivered. A strict Book, for a sealed host, keeps all
// entries until their items have expired.
//
// # Concurrency
//
// A [Book] is safe for concurrent use, and starts no goroutine.
package waiting
