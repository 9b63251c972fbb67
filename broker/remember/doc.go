// Package remember stores the last state of a host's sessions at the relays, so people can read
// it while the host is unreachable. The state is encrypted, and relays do not have the key.
//
// # Records
//
// A host-agent writes one record for each session, and one record with the list of sessions:
//
//	list                 {"sessions": [summary], "kept": {ID: digest}}
//	SHA-256 of the URI   {"session": URI, "summary": summary, "chat": URI, "state": {title, turns, activeTurn}}
//
// A sealed host computes IDs with a key, pads its records, and has "versions" in the list; see
// docs/sealed.md.
//
// Both contents are JSON of at most [MaxContent] bytes. Summaries and turns are the host's own
// JSON. The ID of a session's record is the SHA-256 of the session's URI in hexadecimal.
//
// # Keys
//
// A host-agent has a random key of 32 bytes, the host's key. The key of each record is derived
// from it by HKDF-SHA256 with the info
//
//	"ahp-remember v1\n" tenant "\n" host "\n" ID
//
// A person with access to the whole host gets the host's key. A person with a link to one
// session gets only the key of that session's record. The host-agent sends keys to clients
// inside their connections (hostagent). When the token or device of a person with a key is
// revoked, the host-agent makes a new host's key, and encrypts all records again.
//
// # Sealing
//
// The content is encrypted with AES-256-GCM under the record's key. A random nonce of 12 bytes
// precedes the ciphertext. The additional data is the head:
//
//	"ahp-remember v1\n" tenant "\n" host "\n" ID "\n" key's ID "\n" version "\n" time in ms
//
// The host-agent signs the head, a line feed and the SHA-256 of the encrypted content with
// ECDSA on P-256 and SHA-256. The signature consists of r and s with 32 bytes each. Versions
// signed with one key always increase, even if the clock is set back: their upper 32 bits count
// the starts of the host-agent. A device rejects a version lower than the latest it has seen.
//
// # Requests
//
// A host-agent sends a [Request] to ahp.v1.<tenant>.<host>.ctl.remember. One relay receives it
// and returns an [Answer]. Relays accept requests only from the instance which holds the host's
// lease.
package remember
