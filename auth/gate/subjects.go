package gate

import (
	"cmp"
	"container/list"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Bounds for a [Subjects].
const (
	// maxClientIDs is the largest number of clientIds in memory.
	maxClientIDs = 1 << 16

	// maxConnIDs is the largest number of clientIds on a connection.
	maxConnIDs = 16

	// maxClientIDLen is the longest clientId, in bytes. Real clientIds have 36.
	maxClientIDLen = 1024

	// goneTime is the longest time between a sign that the host process has ended and the
	// end of the last connection.
	goneTime = 2 * time.Second
)

// A Subjects records which subjects use a host, and who owns the clientIds. A clientId
// belongs to the first subject that has used it, as long as the host process lives,
// because hosts remember clients that long.
//
// ClientIds that differ only in case count as equal, because hosts put clientIds into
// URIs as authorities, and some compare these without regard to case.
//
// At the limit, a clientId is dropped from the subject with the most clientIds: the one
// that is unused for longest and has no connection. So no subject can displace the
// clientIds of a subject with fewer. If none can be dropped, a new clientId is refused.
type Subjects struct {
	several atomic.Bool                       // more than one subject has connected since the host process started
	lengths [3*maxClientIDLen + 1]atomic.Bool // lengths of the clientIds in lower case, since the host process started
	firsts  [utf8.RuneSelf]atomic.Bool        // first bytes of these clientIds, if ASCII

	mu      sync.Mutex // guards the fields below
	known   map[string]*subject
	owners  map[idHash]*clientID
	bound   int        // clientIds with a connection
	limit   int        // of owners
	all     subjectSet // subjects that have connected since the host process started
	writers subjectSet // subjects among them that may make agents act
	endedAt time.Time  // the last sign that the host process has ended
	conns   map[*Identity]bool
}

// An idHash is the hash of a clientId, ignoring case. Hashes save memory, because
// clientIds may be long.
type idHash [sha256.Size]byte

// hashLower returns the hash of a clientId that is already in lower case.
func hashLower(id []byte) idHash { return sha256.Sum256(id) }

// A subject is a host's user.
type subject struct {
	name  string
	conns int
	ids   int
	idle  list.List // *clientID values without a connection, last used at the back
}

// A subjectSet is an empty set, a single subject, or "several".
type subjectSet struct {
	one     string
	several bool
}

func (p *subjectSet) join(subject string) {
	p.one = cmp.Or(p.one, subject)
	p.several = p.several || p.one != subject
}

// others reports whether the set contains a subject other than the given one.
func (p *subjectSet) others(subject string) bool {
	return p.several || p.one != "" && p.one != subject
}

type clientID struct {
	hash  idHash
	owner *subject
	conns int
	idle  *list.Element // nil while conns > 0
}

// NewSubjects returns the Subjects for a host without connections.
func NewSubjects() *Subjects {
	return &Subjects{
		limit: maxClientIDs, known: map[string]*subject{},
		owners: map[idHash]*clientID{}, conns: map[*Identity]bool{},
	}
}

// Enter records a subject's connection, and returns the connection's gate. The caller
// calls it before any message reaches the host, and calls Leave at the end.
func (s *Subjects) Enter(user User) *Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	user.Subject = cmp.Or(user.Subject, "\x00") // no token has this subject
	i := &Identity{subjects: s, user: user}
	s.conns[i] = true
	i.owner = s.subject(user.Subject)
	i.owner.conns++
	s.note(i)
	return i
}

// note records that a subject has connected, and whether it may make agents act.
func (s *Subjects) note(i *Identity) {
	s.all.join(i.user.Subject)
	s.several.Store(s.all.several)
	if i.user.Write {
		s.writers.join(i.user.Subject)
	}
}

func (s *Subjects) subject(name string) *subject {
	one := s.known[name]
	if one == nil {
		one = &subject{name: name}
		s.known[name] = one
	}
	return one
}

func (s *Subjects) leave(i *Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.conns[i] {
		return
	}
	delete(s.conns, i)
	i.owner.conns--
	for _, id := range i.ids {
		id.conns--
		if id.conns == 0 {
			s.bound--
			id.idle = id.owner.idle.PushBack(id)
		}
	}
	i.ids = nil
	s.tidy(i.owner)
	if s.bound == 0 && time.Since(s.endedAt) < goneTime {
		s.forget()
	}
}

// tidy drops a subject without connections and clientIds.
func (s *Subjects) tidy(one *subject) {
	if one.conns == 0 && one.ids == 0 {
		delete(s.known, one.name)
	}
}

// HostEnded records that the host's address refuses connections. If then the last
// connection to the host ends too, the host process has ended, and all clientIds are
// forgotten. Ended connections alone prove nothing: a hanging host looks the same, and a
// client that makes the host hang must not get another subject's clientId.
func (s *Subjects) HostEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endedAt = time.Now()
	if s.bound == 0 {
		s.forget()
	}
}

func (s *Subjects) forget() {
	clear(s.owners)
	clear(s.known)
	s.several.Store(false)
	for i := range s.lengths {
		s.lengths[i].Store(false)
	}
	for i := range s.firsts {
		s.firsts[i].Store(false)
	}
	s.all, s.writers = subjectSet{}, subjectSet{}
	for i := range s.conns { // open connections without a clientId: they will reach the next host process
		i.owner = s.subject(i.user.Subject)
		i.owner.conns++
		s.note(i)
	}
}

// bind assigns a clientId to a connection's subject, or returns the reason for refusing
// it.
func (s *Subjects) bind(i *Identity, text string) objection {
	hash := hashLower([]byte(strings.ToLower(text)))
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.owners[hash]
	switch {
	case id != nil && id.owner != i.owner:
		return refusedForeign
	case id != nil && slices.Contains(i.ids, id):
		return none
	case len(i.ids) == maxConnIDs:
		return refusedMany
	case id == nil && !s.makeRoom():
		return refusedFull
	case id == nil:
		lower := strings.ToLower(text)
		s.lengths[len(lower)].Store(true)
		for c := range s.firsts {
			if lower == "" || lower[0] == byte(c) { // after an empty clientId, any byte may follow
				s.firsts[c].Store(true)
			}
		}
		id = &clientID{hash: hash, owner: i.owner}
		s.owners[hash] = id
		i.owner.ids++
	}
	i.ids = append(i.ids, id)
	if id.idle != nil {
		id.owner.idle.Remove(id.idle)
		id.idle = nil
	}
	if id.conns++; id.conns == 1 {
		s.bound++
	}
	return none
}

// makeRoom ensures that another clientId fits, and returns false if that is impossible.
// It may drop a clientId from the subject with the most.
func (s *Subjects) makeRoom() bool {
	if len(s.owners) < s.limit {
		return true
	}
	most := new(subject)
	for _, one := range s.known {
		if one.ids > most.ids {
			most = one
		}
	}
	if most.idle.Len() == 0 {
		return false
	}
	oldest := most.idle.Remove(most.idle.Front()).(*clientID)
	delete(s.owners, oldest.hash)
	most.ids--
	s.tidy(most)
	return true
}

func (s *Subjects) owner(hash idHash) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := s.owners[hash]; id != nil {
		return id.owner.name
	}
	return ""
}

// hasLength reports whether any clientId may have this length in lower case.
func (s *Subjects) hasLength(n int) bool { return n < len(s.lengths) && s.lengths[n].Load() }

// mayBegin reports whether a text with this first byte may be a clientId, also with
// escapes or after bytes that some parsers drop.
func (s *Subjects) mayBegin(first byte) bool {
	if first >= utf8.RuneSelf || first == '%' || isDropped(first) {
		return true
	}
	if 'A' <= first && first <= 'Z' {
		first |= 0x20
	}
	return s.firsts[first].Load()
}

// othersWrite reports whether another subject that may make agents act is or was
// connected.
func (s *Subjects) othersWrite(subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writers.others(subject)
}
