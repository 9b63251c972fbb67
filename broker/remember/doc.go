// Package remember keeps the last state of a host's sessions at the relays, for people
// to read while the host is away. The relays hold no key to it.
//
// # Records
//
// A host-agent writes one record for each session, and one with the list of sessions:
//
//	list                 {"sessions": [summary], "kept": {ID: digest}}
//	SHA-256 of the URI   {"session": URI, "summary": summary, "chat": URI, "state": {title, turns, activeTurn}}
//
// A sealed host computes IDs with a key, has "versions" in the list and pads its records:
// docs/sealed.md has the differences.
//
// Both are JSON of at most [MaxContent] bytes with the host's own words for summaries
// and turns. The ID of a session's record is the SHA-256 of its URI in hexadecimal.
//
// # Keys
//
// A host-agent has a random key of 32 bytes. The key of a record follows from it by
// HKDF-SHA256 with the info
//
//	"ahp-remember v1\n" tenant "\n" host "\n" ID
//
// so a person with access to the whole host gets the host's key. A person with a link to a
// single session gets only the key of that record. The host-agent hands the keys to each client
// inside its connection (hostagent). It renews the host's key when the token or device of any
// holder is revoked, and then seals all records again.
//
// # Sealing
//
// The content is sealed with AES-256-GCM under the record's key and a random nonce of
// 12 bytes, which stands before the ciphertext. The additional data is the head:
//
//	"ahp-remember v1\n" tenant "\n" host "\n" ID "\n" key's ID "\n" version "\n" time in ms
//
// The host-agent signs the head, a line feed and the SHA-256 of the sealed content with
// ECDSA on P-256 and SHA-256. The signature is r and s with 32 bytes each. Versions of
// one signing key increase, also if the clock goes back: the upper 32 bits count the
// starts of the host-agent. A device refuses a version below the latest that it has
// seen.
//
// # Requests
//
// A host-agent sends a [Request] to ahp.v1.<tenant>.<host>.ctl.remember. One relay gets
// it and returns an [Answer]. Relays accept requests only from the instance that serves
// the host.
package remember
