// Package waiting stores items that people leave for offline hosts (package broker/waiting), in a
// store that relays share.
//
// Each item is a record. Its latest version replaces the earlier versions:
//
//	ahp.relays.v1.waiting.w.<tenant>.<host>.<ID>   Stored in JSON
//
// A new version must follow the stored one. So if two devices edit an item, the second gets
// [ErrConflict] and the current item. When an item has a result, it no longer changes.
//
// # Bounds
//
// An item that exceeds a limit is refused. Only the same person's finished or expired items for the
// same host are removed to make room. An item is kept for 7 days after its expiry, so that every
// device learns the result. Items for hosts that the registry has forgotten are removed within a
// minute.
//
// # Authority
//
// An item has the authority of the device that left the latest version, as it is when the
// host-agent fetches the item.
//
// # Waking
//
// If the author may operate the host, one relay wakes the host at the item's wake time, once. See
// [Config.Wake].
package waiting
