// Package waiting defines items which people leave for an unreachable host: a message, an answer,
// a new session, or a stop. Relays store the items, and cannot read them.
//
// # Items
//
// An [Item] contains an encrypted [Content], readable for the host and the devices of its author,
// and signed by the author's device (sealed.Letter). The head of this letter is
//
//	tenant LF host LF subject LF session LF id LF version LF expires LF wake LF cancelled LF device
//
// with the session's ID as in [Item], times in ms, 0 or 1 for cancelled, and the
// fingerprint of the signing device. To change an item, the device writes a new item with the same
// ID and the next version. A cancelled item is stored until the host has confirmed the
// cancellation. Devices may add members to the content for their own display, such as the title of
// an answer; hosts ignore them.
//
// # Keys
//
// Inside its connection, a device sends its public keys to the host-agent, and receives the host's
// key and the keys of the person's other devices:
//
//	→ {"method":"relay/waitingKeys","params":{"channel":"ahp-root://","keys":"…","name":"…"}}
//	← {"result":{"tenant":"…","host":"…","devices":[{"keys":"…","name":"…"}]}}
//
// Keys are base64url. A device's keys are its X25519 key and its verifier; the host's key is its
// X25519 key. If the host is not sealed, these requests are readable for the relay, which could
// replace the keys with its own. There the encryption protects the relay's store and its backups,
// but not against a relay which lies from the first connection on. A sealed host's connections hide
// the keys. Its answer has "blind", the key for the IDs of sessions ([BlindID]), and it ignores the
// authority in an [Offer]: see docs/sealed.md.
//
// # Requests
//
// A host-agent sends a [Request] to ahp.v1.<tenant>.<host>.ctl.waiting. One relay receives it. For
// List, the relay returns a signed [Batch] (auth.Signed): the waiting items, and each author's present
// authority. If the host does not accept items of some authors now, the host-agent names these
// authors in its request, so their items do not fill every batch. For Report, the relay records
// the result of an item. If a relay gets a new item while the host is online, it publishes an
// empty message to ahp.v1.<tenant>.<host>.ctl.waitingnews.
package waiting
