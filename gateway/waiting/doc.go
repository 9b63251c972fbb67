// Package waiting keeps the items that people leave for hosts that are away (package
// broker/waiting), in a store that relays share.
//
// Each item is a record. Its latest version replaces the earlier versions:
//
//	ahp.relays.v1.waiting.w.<tenant>.<host>.<ID>   Stored in JSON
//
// A new version must follow the stored one, so of two devices that edit an item, the second
// gets [ErrConflict] and the current item. After a result, an item no longer changes.
//
// # Bounds
//
// An item that exceeds a bound is refused, and none is removed to make room, except finished
// items of the same person. An item stays for keepFor after it has expired, so that every
// device learns the result. Items of hosts that the registry has forgotten are removed within a minute.
//
// # Authority
//
// The authority of an item's author is asked for when a host-agent fetches the item, and
// belongs to the device that left the latest version.
//
// # Waking
//
// At an item's wake time, one relay that can wake the host does so, once, if the author may
// operate the host. See [Config.Wake].
package waiting
