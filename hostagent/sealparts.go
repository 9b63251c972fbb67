package hostagent

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// Bounds of parts of answers that several connections share.
const (
	partLeast = 4 << 10 // bytes
	partMost  = 4 << 20 // bytes
	partTime  = time.Minute
	maxParts  = 16
)

// sharedParts are the snapshots that were sent last. Clients who come together get the same
// one, so it is sealed once, and crosses once. The mutex is that of sealShares.
type sharedParts struct {
	recent []*sharedPart // oldest first
	names  map[string][]byte
}

// A sharedPart is a part of answers to connections with equal authority.
type sharedPart struct {
	class  string
	plain  []byte
	until  time.Time
	epoch  uint32
	key    []byte // body of the epoch's EpochKey parcel
	bodies []*routing.Notification
}

// snapshotIn returns the place and length of the snapshots in a host's answer; 0: it has
// none that is worth sharing.
func snapshotIn(message []byte) (at, n int) {
	if len(message) < partLeast {
		return 0, 0
	}
	env, err := ahp.Peek(message)
	if err != nil || env.Kind != ahp.Response {
		return 0, 0
	}
	for _, name := range []string{"snapshot", "snapshots"} {
		m, _ := ahp.MemberOf(env.Result, name)
		if len(m.Raw) >= partLeast && len(m.Raw) <= partMost {
			return bytes.Index(message, m.Raw), len(m.Raw)
		}
	}
	return 0, 0
}

// part returns a part as sealed for a class, or nil if it goes in the reader's own stream.
func (h *sealShares) part(class string, plain []byte) *sharedPart {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.parts.recent = slices.DeleteFunc(h.parts.recent, func(p *sharedPart) bool { return now.After(p.until) })
	for _, p := range h.parts.recent {
		if p.class == class && bytes.Equal(p.plain, plain) {
			return p
		}
	}
	if h.epochs == math.MaxUint32 {
		return nil
	}
	h.epochs++
	epoch, err := sealed.NewEpoch(h.epochs)
	if err != nil {
		return nil
	}
	bodies, err := epoch.SealPart(plain)
	if err != nil || bodies == nil {
		return nil
	}
	p := &sharedPart{class: class, plain: bytes.Clone(plain), until: now.Add(partTime), epoch: h.epochs, key: epoch.Key()}
	for _, body := range bodies {
		p.bodies = append(p.bodies, routing.NewSealedBody(body, h.parts.name(class)))
	}
	if h.parts.recent = append(h.parts.recent, p); len(h.parts.recent) > maxParts {
		h.parts.recent = slices.Delete(h.parts.recent, 0, 1)
	}
	return p
}

// name returns a random name for a class, for relays.
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

// takeJoined queues an answer whose snapshots other connections share, and reports whether it
// has done so. The mutex is held.
func (s *sealing) takeJoined(message []byte) (taken, due bool, err error) {
	at, n := snapshotIn(message)
	if n == 0 || s.line.moving.Load() != nil {
		return false, false, nil
	}
	p := s.agent.seals.shared.part(s.class, message[at:at+n])
	if p == nil || s.holds(p.epoch) {
		return false, false, nil
	}
	due, err = s.takeLocked(sealed.EpochKey, p.key)
	if s.gave(p.epoch); err != nil {
		return true, due, err
	}
	s.session.Give(len(p.bodies))
	_, look, err := s.line.now.Load().Notify(p.bodies)
	if due = due || look; err != nil {
		return true, due, err
	}
	look, err = s.takeLocked(sealed.Joined, sealed.AppendJoined(message, at, n))
	return true, due || look, err
}
