package hostagent

import (
	"bytes"
	"container/list"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// Bounds of sealed sharing.
const (
	maxShareSets = 1024             // most sets; the set that was not used for longest is forgotten
	sharedWindow = 8 << 20          // most bytes of remembered messages, plain and sealed
	epochTime    = 10 * time.Minute // an epoch's keys are used no longer than this
	lagTime      = 2 * time.Second  // a reader that lacks a message for this time is removed from its set, within twice the time
	leftTime     = 4 * time.Second  // after a reader has left, new keys are used within this time
)

// sealShares seals a message once for several connections. A set is the connections with
// equal authority that receive the messages of one channel; its members share random keys,
// and each key is valid for an epoch. sealShares learns a set's members from the messages
// that the gates of each connection let through. The zero value is ready.
type sealShares struct {
	mu     sync.Mutex
	sets   map[shareKey]*shareSet
	used   list.List                   // the sets as *shareSet, most recently used first
	epochs uint32                      // number of the newest epoch
	byHash map[uint64][]*sharedMessage // the remembered messages by their hash, oldest first
	recent list.List                   // the remembered messages as *sharedMessage, oldest first
	bytes  int                         // length of the remembered messages
	parts  sharedParts
}

// A shareKey names a set of readers.
type shareKey struct{ class, channel string }

// A shareSet is the set of readers of one channel with equal authority.
type shareSet struct {
	key     shareKey
	name    []byte // the name that relays see; it does not contain the channel
	seed    maphash.Seed
	place   *list.Element
	readers map[*sealing]uint64    // readers that have the epoch's key or are about to get it, with the number of the last message that each received
	took    map[*sealing]uint64    // the same for all connections, including late and unsubscribed ones
	left    map[*sealing]time.Time // readers that have unsubscribed, with the time
	last    uint64                 // number of the newest message
	epoch   *sealed.Epoch          // the keys in use; nil if the next message gets new keys
	until   time.Time              // when the epoch ends
	mark    uint64                 // number of the newest message that is at least lagTime old
	marked  time.Time
}

// A sharedMessage is a message sealed for a set.
type sharedMessage struct {
	set    *shareSet
	hash   uint64
	number uint64
	first  bool // the message is the first of its epoch
	plain  []byte
	epoch  uint32
	key    []byte                  // body of the epoch's EpochKey parcel
	bodies []*routing.Notification // the sealed message
	size   int
}

// message returns a message sealed for the reader's set, or nil if the reader must get it
// in its own stream. It keeps plain. The reader's mutex is held.
func (h *sealShares) message(s *sealing, plain, channel []byte) *sharedMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	set := h.setLocked(shareKey{s.class, string(channel)})
	if at, ok := set.left[s]; ok {
		if now.Sub(at) < leftTime {
			return nil // the message was on its way when the reader unsubscribed
		}
		delete(set.left, s)
	}
	hash := maphash.Bytes(set.seed, plain)
	if m := h.foundLocked(set, s, plain, hash); m != nil {
		return set.join(s, m)
	}
	set.readers[s] = set.last
	set.dropLate(now, s)
	if len(set.readers) < 2 {
		return nil
	}
	if !set.over(now) && !set.mayHave(s, set.epoch.Number(), false) {
		return nil
	}
	return h.sealLocked(set, s, plain, hash, now)
}

// foundLocked returns the sealed form of a remembered message, or nil. If the host sends
// equal messages, a reader gets a different sealed form of each, so relays cannot see
// that the messages are equal.
func (h *sealShares) foundLocked(set *shareSet, s *sealing, plain []byte, hash uint64) *sharedMessage {
	for _, m := range h.byHash[hash] {
		if m.set == set && m.number > set.took[s] && bytes.Equal(m.plain, plain) {
			return m
		}
	}
	return nil
}

// join returns the sealed message m if the connection has the key of m's epoch or may get
// the key now. In the present epoch, the connection becomes a reader, and the key ends when
// the connection leaves. A connection that is too late gets no key.
func (set *shareSet) join(s *sealing, m *sharedMessage) *sharedMessage {
	set.took[s] = m.number
	if set.epoch != nil && set.epoch.Number() == m.epoch && m.number >= set.mark {
		set.readers[s] = max(set.readers[s], m.number)
		if set.mayHave(s, m.epoch, m.first) {
			return m
		}
		return nil
	}
	if s.holds(m.epoch) {
		return m
	}
	return nil
}

// mayHave reports whether a reader has an epoch's key or may get it. A viewer of a link
// gets only keys of epochs that begin after it came: a relay may have stored earlier sealed
// messages, and may know the link's keys. The viewer waits for the next epoch, which begins
// soon.
func (set *shareSet) mayHave(s *sealing, epoch uint32, first bool) bool {
	if !s.guest || first || s.holds(epoch) {
		return true
	}
	set.expire(false)
	return false
}

// setLocked returns the set with a key, and creates it if needed.
func (h *sealShares) setLocked(key shareKey) *shareSet {
	if set := h.sets[key]; set != nil {
		h.used.MoveToFront(set.place)
		return set
	}
	if h.sets == nil {
		h.sets, h.byHash = map[shareKey]*shareSet{}, map[uint64][]*sharedMessage{}
	}
	if len(h.sets) >= maxShareSets {
		oldest := h.used.Remove(h.used.Back()).(*shareSet)
		delete(h.sets, oldest.key)
	}
	set := &shareSet{
		key: key, name: strconv.AppendUint(nil, rand.Uint64(), 36), seed: maphash.MakeSeed(),
		readers: map[*sealing]uint64{}, took: map[*sealing]uint64{}, left: map[*sealing]time.Time{},
	}
	set.place = h.used.PushFront(set)
	h.sets[key] = set
	return set
}

// dropLate removes the readers that have not received a message which is at least lagTime
// old. except has just received a message, and stays.
func (set *shareSet) dropLate(now time.Time, except *sealing) {
	if now.Sub(set.marked) < lagTime {
		return
	}
	for s, seen := range set.readers {
		if seen < set.mark && s != except {
			delete(set.readers, s)
			set.epoch = nil
		}
	}
	maps.DeleteFunc(set.left, func(_ *sealing, at time.Time) bool { return now.Sub(at) >= leftTime })
	set.mark, set.marked = set.last, now
}

// over reports whether the next message begins a new epoch.
func (set *shareSet) over(now time.Time) bool {
	return set.epoch == nil || set.epoch.Spent() || now.After(set.until)
}

// sealLocked seals a new message for a set. It returns nil on failure.
func (h *sealShares) sealLocked(set *shareSet, s *sealing, plain []byte, hash uint64, now time.Time) *sharedMessage {
	first := set.over(now)
	if first {
		if h.epochs == math.MaxUint32 {
			return nil
		}
		h.epochs++
		epoch, err := sealed.NewEpoch(h.epochs)
		if err != nil {
			return nil
		}
		set.epoch, set.until = epoch, now.Add(epochTime)
	}
	bodies, err := set.epoch.Seal(plain)
	if err != nil {
		return nil
	}
	set.last++
	set.readers[s], set.took[s] = set.last, set.last
	m := &sharedMessage{set: set, hash: hash, number: set.last, first: first, plain: plain, epoch: set.epoch.Number(), key: set.epoch.Key(), size: len(plain)}
	for _, body := range bodies {
		m.bodies = append(m.bodies, routing.NewSealedBody(body, set.name))
		m.size += len(body)
	}
	h.byHash[hash] = append(h.byHash[hash], m)
	h.recent.PushBack(m)
	h.bytes += m.size
	for h.bytes > sharedWindow && h.recent.Len() > 1 {
		old := h.recent.Remove(h.recent.Front()).(*sharedMessage)
		h.bytes -= old.size
		if rest := h.byHash[old.hash][1:]; len(rest) > 0 { // old is the first
			h.byHash[old.hash] = rest
		} else {
			delete(h.byHash, old.hash)
		}
	}
	return m
}

// leave removes a connection that ends from all sets. If now is true, the next message of
// each set has a new key; otherwise the keys change within leftTime, so readers who
// come and go do not cause a new key each time.
func (h *sealShares) leave(s *sealing, now bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, set := range h.sets {
		_, reader := set.readers[s]
		_, was := set.left[s] // an unsubscribed connection still has the set's key
		delete(set.readers, s)
		delete(set.left, s)
		delete(set.took, s)
		if reader || was {
			set.expire(now)
		}
	}
}

// unsubscribed removes a connection from its set of a channel.
func (h *sealShares) unsubscribed(s *sealing, channel []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if set := h.sets[shareKey{s.class, string(channel)}]; set != nil {
		if _, ok := set.readers[s]; ok {
			delete(set.readers, s)
			set.left[s] = time.Now()
			set.expire(false)
		}
	}
}

// expire ends the set's epoch at once if now is true, otherwise within leftTime.
func (set *shareSet) expire(now bool) {
	if now {
		set.epoch = nil
	} else if soon := time.Now().Add(leftTime); set.until.After(soon) {
		set.until = soon
	}
}

// holds reports whether the client has an epoch's key. The mutex is held.
func (s *sealing) holds(epoch uint32) bool { return slices.Contains(s.epochs, epoch) }

// gave records that the client has an epoch's key. The mutex is held.
func (s *sealing) gave(epoch uint32) {
	if len(s.epochs) == sealed.MaxEpochs {
		s.epochs = s.epochs[1:]
	}
	s.epochs = append(s.epochs, epoch)
}

func (c *sealedConn) Tag(sum [32]byte, own uint64) [routing.TagSize]byte {
	return c.seal.tag(c.conn, sum, own)
}

// sharable reports whether a notification may be sealed for several readers. The mutex is
// held.
func (s *sealing) sharable(n *routing.Notification) bool {
	return s.shares && !s.viewer && s.class != "" && len(n.Message()) <= sealed.MaxShared && len(n.Channel()) > 0
}

// notify queues consecutive notifications, each sealed for the set or in the connection's
// own stream. It is [routing.AgentConn.Notify] for the present line.
func (s *sealing) notify(row []*routing.Notification) (taken int, due bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return 0, false, routing.ErrConnClosed
	}
	s.leaveCrowd()
	conn := s.line.now.Load()
	var bodies []*routing.Notification
	own := func(content sealed.Content, body []byte) error {
		_, look, err := conn.Notify(bodies)
		due, bodies = due || look, bodies[:0]
		if err == nil {
			look, err = s.takeLocked(content, body)
			due = due || look
		}
		return err
	}
	for i, n := range row {
		var m *sharedMessage
		if s.sharable(n) {
			m = s.agent.seals.shared.message(s, n.Message(), n.Channel())
		}
		switch {
		case m == nil:
			err = own(sealed.Message, n.Message())
		case !s.holds(m.epoch):
			err = own(sealed.EpochKey, m.key)
			s.gave(m.epoch)
		}
		if err != nil {
			return i, due, err
		}
		if m != nil {
			s.session.Give(len(m.bodies))
			bodies = append(bodies, m.bodies...)
		}
	}
	_, look, err := conn.Notify(bodies)
	return len(row), due || look, err
}
