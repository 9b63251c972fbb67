// Package unauthenticated bounds the connections that have not shown a valid
// credential. Beyond a bound, the oldest connection of the busiest group is
// evicted: a flood from one address evicts itself, and a client that
// authenticates soon keeps its place, even when it shares that address.
package unauthenticated

import (
	prio "container/heap"
	"container/list"
	"sync"
)

// Bounds limit the connections in a [Table]. Zero means no bound.
type Bounds struct {
	Group         int // unauthenticated connections of one group
	Total         int // unauthenticated connections of all groups
	Authenticated int // authenticated connections of one group; above, they count as unauthenticated
}

// A Table holds connections until they leave. It is safe for concurrent use.
type Table struct {
	Bounds Bounds // set by New, then read-only

	mu     sync.Mutex // guards the fields below, and each Entry and group
	groups map[string]*group
	most   groups // a heap of the same groups
	count  int    // unauthenticated connections
	turn   uint64 // highest turn of an Entry so far
}

// An Entry is a connection in a Table.
type Entry struct {
	table *Table
	group *group
	evict func()
	at    *list.Element // in group.waiting; nil: authenticated, or it has left
	turn  uint64        // 0: idle
	left  bool
}

// A group is the connections from one address, or from several that count as one.
type group struct {
	name          string
	waiting       list.List // unauthenticated *Entry, the next to evict first
	authenticated int
	index         int // in the heap
}

// New returns an empty Table.
func New(bounds Bounds) *Table { return &Table{Bounds: bounds, groups: map[string]*group{}} }

// Len returns the number of unauthenticated connections, and of groups.
func (t *Table) Len() (waiting, groups int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count, len(t.groups)
}

// Enter adds an unauthenticated connection. Beyond a bound, it removes the
// connection to evict, and calls that connection's evict function.
func (t *Table) Enter(name string, evict func()) *Entry {
	c, out := t.add(name, evict)
	if out != nil {
		out.evict()
	}
	return c
}

func (t *Table) add(name string, evict func()) (c, out *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[name]
	if g == nil {
		g = &group{name: name}
		t.groups[name] = g
		prio.Push(&t.most, g)
	}
	c = &Entry{table: t, group: g, evict: evict}
	t.waitLocked(c, false)
	if t.Bounds.Group > 0 && g.waiting.Len() > t.Bounds.Group {
		out = g.next()
	} else if t.Bounds.Total > 0 && t.count > t.Bounds.Total {
		out = t.most[0].next()
	}
	if out != nil {
		out.leaveLocked()
	}
	return c, out
}

func (t *Table) waitLocked(c *Entry, idle bool) {
	if idle {
		c.turn, c.at = 0, c.group.waiting.PushFront(c)
	} else {
		t.turn++
		c.turn, c.at = t.turn, c.group.waiting.PushBack(c)
	}
	t.count++
	prio.Fix(&t.most, c.group.index)
}

func (t *Table) unwaitLocked(c *Entry) {
	c.group.waiting.Remove(c.at)
	c.at = nil
	t.count--
	prio.Fix(&t.most, c.group.index)
}

// Next makes the connection unauthenticated again, for its next request. Idle reports
// that this request has not begun; a group's idle connections are evicted before its
// active ones.
func (c *Entry) Next(idle bool) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	switch {
	case c.left:
		return
	case c.at == nil:
		c.group.authenticated--
	default:
		c.table.unwaitLocked(c)
	}
	c.table.waitLocked(c, idle)
}

// Authenticated records a valid credential.
func (c *Entry) Authenticated() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	if most := c.table.Bounds.Authenticated; c.at != nil && (most == 0 || c.group.authenticated < most) {
		c.table.unwaitLocked(c)
		c.group.authenticated++
	}
}

// Leave removes the connection. Further calls do nothing.
func (c *Entry) Leave() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.leaveLocked()
}

func (c *Entry) leaveLocked() {
	if c.left {
		return
	}
	c.left = true
	if c.at == nil {
		c.group.authenticated--
	} else {
		c.table.unwaitLocked(c)
	}
	if g := c.group; g.waiting.Len() == 0 && g.authenticated == 0 {
		prio.Remove(&c.table.most, g.index)
		delete(c.table.groups, g.name)
	}
}

// next returns the group's next connection to evict, or nil.
func (g *group) next() *Entry {
	front := g.waiting.Front()
	if front == nil {
		return nil
	}
	return front.Value.(*Entry)
}

// groups is a heap with the busiest group on top.
type groups []*group

func (s groups) Len() int { return len(s) }

func (s groups) Less(i, j int) bool {
	if a, b := s[i].waiting.Len(), s[j].waiting.Len(); a != b || a == 0 {
		return a > b
	}
	return s[i].next().turn < s[j].next().turn
}

func (s groups) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *groups) Push(x any) {
	g := x.(*group)
	g.index = len(*s)
	*s = append(*s, g)
}

func (s *groups) Pop() any {
	last := len(*s) - 1
	g := (*s)[last]
	*s = (*s)[:last]
	return g
}
