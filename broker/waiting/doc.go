// Package waiting is for items that people leave for a host while it is away: a message, an
// answer, a new session, or a stop. The relays keep them, and cannot read them.
//
// # Items
//
// An [Item] has a [Content], sealed to the host and to the devices of its author, and signed by
// the author's device (sealed.Letter). The head of the letter is
//
//	tenant LF host LF subject LF session LF id LF version LF expires LF wake LF cancelled LF device
//
// with the session's ID of package remember, times in ms, 0 or 1 for cancelled, and the
// fingerprint of the device that signs. A change is an item with the same ID and the next
// version. A cancelled item stays until the host has confirmed that. Devices may add members to
// the content for their own display, such as the title of an answer; hosts ignore them.
//
// # Keys
//
// A device gives its public keys to the host-agent inside its connection, and gets the host's
// key and the keys of the person's other devices:
//
//	→ {"method":"relay/waitingKeys","params":{"channel":"ahp-root://","keys":"…","name":"…"}}
//	← {"result":{"tenant":"…","host":"…","devices":[{"keys":"…","name":"…"}]}}
//
// Keys are base64url: a device's are its X25519 key and its verifier, the host's is its X25519
// key. On hosts that are not sealed, these requests pass the relay. A relay could put in keys of
// its own, so there the encryption protects the store and its backups, not against a relay
// that lies from the first connection on.
//
// # Requests
//
// A host-agent sends a [Request] to ahp.v1.<tenant>.<host>.ctl.waiting. One relay gets it. For
// List it returns a [Signed] [Batch] with the items that wait and the authority of each author
// at that moment. A host-agent may leave out authors whose items the host does not take now, so that
// these items do not fill each batch. For Report it notes the result of an item. A relay that gets a new item while
// the host is online publishes an empty message to ahp.v1.<tenant>.<host>.ctl.waitingnews.
package waiting
