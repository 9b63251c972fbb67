// Package waiting has the host-agent's lasting memory of the items that people leave for its
// host (package broker/waiting): its key, the keys of people's devices, and a journal.
//
// # The journal
//
// An entry is written durably before the step that it names, so each item is delivered at most
// once, whatever crashes:
//
//	creating   a session is about to be created
//	sending    an action is about to be sent to the host
//	over       the result is known; relays may not have it yet
//
// A host-agent that finds an entry other than over after a restart asks the host whether the
// item is there. If it is not, the result is [waiting.Unknown], except that a session of an
// entry creating may still get its first message. No later version of an item with an entry is
// ever delivered.
//
// # Concurrency
//
// A [Book] is safe for concurrent use, and has no goroutine.
package waiting
