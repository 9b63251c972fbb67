package hostagent

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"

	"ahprelay/ahp"
)

// A frameCache knows the notifications that the host has sent lately, and what
// [ahp.Peek] reads of them: the host sends most to many clients, and each of
// them is read once.
// The zero frameCache knows none.
type frameCache struct {
	last [cachedFrames]atomic.Pointer[cachedFrame] // by hash
}

var frameSeed = maphash.MakeSeed()

// Bounds of a frameCache: together 4 MiB.
const (
	cachedFrames = 1 << 10
	cachedSize   = 4 << 10
)

// A cachedFrame is read-only.
type cachedFrame struct {
	message []byte
	env     ahp.Envelope // of message
}

func (f *frameCache) slot(message []byte) *atomic.Pointer[cachedFrame] {
	return &f.last[maphash.Bytes(frameSeed, message)%cachedFrames]
}

// find returns what a message says that is the same as an earlier one, nil if
// there is none.
func (f *frameCache) find(message []byte) *ahp.Envelope {
	if len(message) > cachedSize {
		return nil
	}
	if known := f.slot(message).Load(); known != nil && bytes.Equal(known.message, message) {
		return &known.env
	}
	return nil
}

// add takes a notification.
func (f *frameCache) add(message []byte) {
	if len(message) > cachedSize {
		return
	}
	message = bytes.Clone(message)
	if env, err := ahp.Peek(message); err == nil {
		f.slot(message).Store(&cachedFrame{message, env})
	}
}
