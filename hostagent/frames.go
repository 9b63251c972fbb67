package hostagent

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// A frameCache knows the notifications that the host has sent lately, and what
// [ahp.Peek] reads of them: the host sends most to many clients, and each of
// them is read once. What came after one of them on some connection is likely
// to come after it on others too: there it is looked for first.
// The zero frameCache knows none.
type frameCache struct {
	slots [cachedFrames]frameSlot // by hash of the message
}

// A frameSlot has the last notification of those whose place it is.
type frameSlot struct {
	frame atomic.Pointer[cachedFrame]
	next  atomic.Uint32 // slot of what came after it, when that was last seen
}

var frameSeed = maphash.MakeSeed()

// Bounds of a frameCache: together 8 MiB.
const (
	cachedFrames = 4 << 10
	cachedSize   = 2 << 10
)

// A cachedFrame is read-only.
type cachedFrame struct {
	message []byte
	env     ahp.Envelope // of message
	shared  *routing.Notification
}

// find returns the notification that is the same as a message, nil if it is not
// known, and its slot. After is the slot of the one that came before it.
func (f *frameCache) find(message []byte, after uint32) (known *cachedFrame, slot uint32) {
	before := &f.slots[after]
	slot = before.next.Load()
	if known = f.slots[slot].frame.Load(); known.is(message) {
		return known, slot
	}
	if len(message) > cachedSize {
		return nil, after
	}
	slot = uint32(maphash.Bytes(frameSeed, message) % cachedFrames)
	if known = f.slots[slot].frame.Load(); known.is(message) {
		before.next.Store(slot)
		return known, slot
	}
	return nil, slot
}

func (c *cachedFrame) is(message []byte) bool { return c != nil && bytes.Equal(c.message, message) }

// add takes a notification that find does not know, and returns it unless it is
// too long.
func (f *frameCache) add(message []byte, slot, after uint32) *cachedFrame {
	if len(message) > cachedSize {
		return nil
	}
	message = bytes.Clone(message)
	env, err := ahp.Peek(message)
	if err != nil {
		return nil
	}
	known := &cachedFrame{message, env, routing.NewNotification(message, env.Channel)}
	f.slots[slot].frame.Store(known)
	f.slots[after].next.Store(slot)
	return known
}
