package hostagent

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// Bounds of shared parts: parts of answers that several connections receive.
const (
	partLeast = 4 << 10 // shortest shared part, in bytes
	partMost  = 4 << 20 // longest shared part, in bytes
	partTime  = time.Minute
	maxParts  = 16
)

// sharedParts holds the latest snapshots that were sent. Clients that connect at the same
// time get the same snapshot, so it is sealed once and sent to the relay once. The mutex of
// sealShares guards it.
type sharedParts struct {
	recent []*sharedPart // the latest parts, oldest first
	names  map[string][]byte
}

// A sharedPart is a part of the answers to connections with equal authority.
type sharedPart struct {
	class string
	name  []byte // random name for class, for relays
	plain []byte
	took  map[*sealing]bool // connections that got the part. Each gets it once

	once   sync.Once // runs seal, which sets the fields below
	key    []byte
	bodies []*routing.Notification
}

// snapshotIn returns place and length of the shared part of a host's answer: its
// snapshots, or, if whole is true and the answer's result is at most partMost long, the
// whole result. The length is 0 if no snapshot has a length from partLeast to partMost.
func snapshotIn(message []byte, whole bool) (at, n int) {
	if len(message) < partLeast {
		return 0, 0
	}
	env, err := ahp.Peek(message)
	if err != nil || env.Kind != ahp.Response {
		return 0, 0
	}
	for _, name := range []string{"snapshot", "snapshots"} {
		part := ahp.RawOf(env.Result, name)
		if len(part) >= partLeast && len(part) <= partMost {
			if whole && len(env.Result) <= partMost {
				part = env.Result
			}
			return bytes.Index(message, part), len(part)
		}
	}
	return 0, 0
}

// part returns a part sealed for the reader's class, or nil if the reader must get it in its
// own stream.
func (h *sealShares) part(s *sealing, plain []byte) *sharedPart {
	p := h.partOf(s, plain)
	if p == nil {
		return nil
	}
	p.once.Do(p.seal)
	if p.bodies == nil {
		return nil
	}
	return p
}

// partOf returns the part, which may not be sealed yet, or nil if the reader already got it.
func (h *sealShares) partOf(s *sealing, plain []byte) *sharedPart {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.parts.recent {
		if p.class != s.class || !bytes.Equal(p.plain, plain) {
			continue
		}
		if p.took[s] {
			return nil
		}
		p.took[s] = true
		return p
	}
	p := &sharedPart{class: s.class, name: h.parts.name(s.class), plain: bytes.Clone(plain), took: map[*sealing]bool{s: true}}
	if h.parts.recent = append(h.parts.recent, p); len(h.parts.recent) > maxParts {
		h.parts.recent = slices.Delete(h.parts.recent, 0, 1)
	}
	time.AfterFunc(partTime, func() { h.forget(p) })
	return p
}

// seal makes the part's key and bodies. A part that is too long to be shared gets none.
func (p *sharedPart) seal() {
	key, bodies, err := sealed.SealPart(p.plain)
	if err != nil {
		return
	}
	p.key = key
	for _, body := range bodies {
		p.bodies = append(p.bodies, routing.NewSealedBody(body, p.name))
	}
}

func (h *sealShares) forget(p *sharedPart) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts.recent = slices.DeleteFunc(h.parts.recent, func(other *sharedPart) bool { return other == p })
}

// name returns a random name that stands for a class at relays.
func (s *sharedParts) name(class string) []byte {
	if len(s.names) >= maxShareSets {
		clear(s.names)
	}
	if s.names == nil {
		s.names = map[string][]byte{}
	}
	if s.names[class] == nil {
		s.names[class] = strconv.AppendUint(nil, rand.Uint64(), 36)
	}
	return s.names[class]
}

// takeJoined queues an answer whose snapshots are shared with other connections. It returns
// taken = false if the answer must be sealed for this connection alone. The mutex is held.
func (s *sealing) takeJoined(message []byte) (taken, due bool, err error) {
	at, n := snapshotIn(message, s.viewer) // on a shared connection, the whole result is the same for all viewers
	if n == 0 || s.line.moving.Load() != nil {
		return false, false, nil
	}
	p := s.agent.seals.shared.part(s, message[at:at+n])
	if p == nil {
		return false, false, nil
	}
	s.session.Give(len(p.bodies))
	if _, due, err = s.line.now.Load().Notify(p.bodies); err != nil {
		return true, due, err
	}
	look, err := s.takeLocked(sealed.Joined, sealed.AppendJoined(p.key, message, at, n))
	return true, due || look, err
}
