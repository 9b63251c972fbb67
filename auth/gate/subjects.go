package gate

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Bounds of a [Subjects].
const (
	// maxClientIDs is how many clientIds are remembered.
	maxClientIDs = 1 << 16

	// maxConnIDs is how many clientIds one connection may use.
	maxConnIDs = 16

	// maxClientIDLen is the longest clientId, in bytes. Real ones have 36.
	maxClientIDLen = 1024

	// goneTime is how long after a sign that the host process has ended the
	// end of the last connection to it is taken for another.
	goneTime = 2 * time.Second
)

// Subjects are those who use one host, and whose the clientIds are that were
// said to it. They are remembered as long as the host process lives, as hosts
// remember clients: a clientId is the subject's that used it first.
//
// Two clientIds that differ only in case count as the same: hosts put them
// into URIs as authorities, and some read these without regard to case.
//
// There is a bound, and no subject's use of it takes a clientId from another
// subject that used less: when it is reached, the subject that has most loses
// those that it has not used for longest and that have no connection. If there
// are none, a new clientId is refused.
type Subjects struct {
	several atomic.Bool                       // more than one subject was there, since the host process started
	lengths [3*maxClientIDLen + 1]atomic.Bool // of clientIds in lower case, since then
	firsts  [utf8.RuneSelf]atomic.Bool        // bytes that one of them begins with, if it is ASCII

	mu      sync.Mutex // guards the fields below
	known   map[string]*subject
	owners  map[idHash]*clientID
	bound   int        // how many clientIds are of connections
	limit   int        // of owners
	all     subjectSet // who was there
	writers subjectSet // those of them with write access
	endedAt time.Time  // when the host process has last shown that it has ended
	conns   map[*Identity]bool
}

// An idHash stands for a clientId, whatever its case. So one takes no more
// memory than another.
type idHash [sha256.Size]byte

func hashID(id string) idHash { return hashLower([]byte(strings.ToLower(id))) }

// hashLower is hashID for a clientId in lower case.
func hashLower(id []byte) idHash { return sha256.Sum256(id) }

// A subject is one of those who use the host.
type subject struct {
	name  string
	conns int
	ids   int
	idle  list.List // of *clientID without a connection; the one that was used last is at the back
}

// A subjectSet is nobody, one subject, or several.
type subjectSet struct {
	one     string
	several bool
}

func (p *subjectSet) join(subject string) {
	if p.one == "" {
		p.one = subject
	}
	p.several = p.several || p.one != subject
}

// others reports whether others than a subject are in it.
func (p *subjectSet) others(subject string) bool {
	return p.several || p.one != "" && p.one != subject
}

// A clientID belongs to a subject.
type clientID struct {
	hash  idHash
	owner *subject
	conns int
	idle  *list.Element // nil while conns > 0
}

// NewSubjects returns Subjects of a host that nobody has used yet.
func NewSubjects() *Subjects {
	return &Subjects{
		limit: maxClientIDs, known: map[string]*subject{},
		owners: map[idHash]*clientID{}, conns: map[*Identity]bool{},
	}
}

// Enter notes that a subject has connected, before any of its messages reach
// the host, and returns the gate of that connection. Leave ends it.
func (s *Subjects) Enter(who Who) *Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	if who.Subject == "" {
		who.Subject = "\x00" // no token says that
	}
	i := &Identity{subjects: s, who: who}
	s.conns[i] = true
	i.owner = s.subject(who.Subject)
	i.owner.conns++
	s.note(i)
	return i
}

// note remembers that a subject was there, and whether it may write.
func (s *Subjects) note(i *Identity) {
	s.all.join(i.who.Subject)
	s.several.Store(s.all.several)
	if i.who.Write {
		s.writers.join(i.who.Subject)
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

// leave ends a connection.
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

// tidy drops a subject that has nothing any more.
func (s *Subjects) tidy(one *subject) {
	if one.conns == 0 && one.ids == 0 {
		delete(s.known, one.name)
	}
}

// HostEnded says that there is no host process: nothing listens where it did.
// Once no connection to it is left, all that was remembered is forgotten. That
// connections end is no such sign: a host that hangs looks the same, and who
// makes it hang must not gain another's clientId by it.
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
	for i := range s.conns { // they wait for the next process
		i.owner = s.subject(i.who.Subject)
		i.owner.conns++
		s.note(i)
	}
}

// bind makes a clientId that of a connection's subject, or says why not.
func (s *Subjects) bind(i *Identity, text string) objection {
	hash := hashID(text)
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
			if lower == "" || lower[0] == byte(c) { // the empty one is before whatever ends an authority
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

// makeRoom reports whether there is room for one more clientId, and makes it
// at the cost of the subject that has most.
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

// owner returns whose a clientId is: "" if nobody has used it.
func (s *Subjects) owner(hash idHash) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := s.owners[hash]; id != nil {
		return id.owner.name
	}
	return ""
}

// hasLength reports whether there may be a clientId of so many bytes in lower
// case.
func (s *Subjects) hasLength(n int) bool { return n < len(s.lengths) && s.lengths[n].Load() }

// mayBegin reports whether there may be a clientId that a text with this byte at its front
// stands for: with escapes, or with what some parsers drop before it.
func (s *Subjects) mayBegin(first byte) bool {
	if first >= utf8.RuneSelf || first == '%' || isDropped(first) {
		return true
	}
	if 'A' <= first && first <= 'Z' {
		first |= 0x20
	}
	return s.firsts[first].Load()
}

// othersWrite reports whether another subject has, or had, write access.
func (s *Subjects) othersWrite(subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writers.others(subject)
}
