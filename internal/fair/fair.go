// Package fair shares few places among many users.
//
// A user requests a place with a path, such as tenant, host, client. At each level of
// the path, a key may have a limited number of places at a time; further requests
// wait. A free place goes round-robin at each level: first between tenants, then
// between a tenant's hosts, then between a host's clients. So a busy user delays only
// itself, and a user with few requests waits for at most one request from each other
// user.
//
// [Turns] bound the number of places in use. [Shares] bound a tenant's share of
// processor time while another tenant is active. [Buckets] bound the rate of each key.
//
// Unauthenticated connections are grouped by the networks of their addresses ([Site],
// [Networks]). If a [Room] is full, the oldest connection from the busiest network is
// closed to admit a new one.
//
// # Concurrency
//
// [Turns], [Shares] and [Buckets] are safe for concurrent use.
package fair

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrFull reports that too many requests with this path already wait.
var ErrFull = errors.New("too many requests wait")

// Turns are places granted to requests in turn.
type Turns struct {
	waiting int

	mu     sync.Mutex // guards the limits and all nodes
	limits []int
	root   node
}

// A node is a key at one level of paths, with the nodes below it.
type node struct {
	parent *node // nil: the root
	key    any
	limit  int // 0: none

	used     int
	children map[any]*node
	ring     []*node   // children with waiting requests; the next in turn first
	queue    []*waiter // waiting requests, at the last level
}

type waiter struct{ turn chan struct{} }

// New returns Turns. Limits has the number of places for one key at each level, and so
// sets the length of paths. At most waiting requests with the same path may wait.
func New(waiting int, limits ...int) *Turns { return &Turns{waiting: waiting, limits: limits} }

// Take waits for a place until ctx ends. The caller calls done to return the place.
// The error is ctx's error or ErrFull.
func (t *Turns) Take(ctx context.Context, path ...any) (done func(), err error) {
	t.mu.Lock()
	leaf := t.findLocked(path)
	if len(leaf.queue) >= t.waiting {
		t.mu.Unlock()
		return nil, ErrFull
	}
	w := &waiter{make(chan struct{})}
	leaf.queue = append(leaf.queue, w)
	leaf.awaitLocked()
	t.grantLocked()
	t.mu.Unlock()
	done = sync.OnceFunc(func() { t.release(leaf) })
	select {
	case <-w.turn:
		return done, nil
	default:
	}
	select {
	case <-w.turn:
		return done, nil
	case <-ctx.Done():
	}
	if !t.leave(leaf, w) {
		done() // granted just now
	}
	return nil, ctx.Err()
}

// Resize changes the number of places for one key at each level. A key with more users than
// places gets no further place until enough of them are done.
func (t *Turns) Resize(limits ...int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	t.root.resizeLocked(limits)
	t.grantLocked()
}

func (n *node) resizeLocked(limits []int) {
	for _, child := range n.children {
		child.limit = limits[0]
		child.resizeLocked(limits[1:])
	}
}

// Contended reports whether any request waits now.
func (t *Turns) Contended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.root.waits()
}

// findLocked returns the node for a path, and creates it if necessary.
func (t *Turns) findLocked(path []any) *node {
	if len(path) != len(t.limits) {
		panic("fair: wrong path length")
	}
	n := &t.root
	for i, key := range path {
		child := n.children[key]
		if child == nil {
			child = &node{parent: n, key: key, limit: t.limits[i]}
			if n.children == nil {
				n.children = map[any]*node{}
			}
			n.children[key] = child
		}
		n = child
	}
	return n
}

func (n *node) waits() bool { return len(n.queue) > 0 || len(n.ring) > 0 }

// awaitLocked adds the node to the rings of all levels above, because a request waits
// in it.
func (n *node) awaitLocked() {
	for ; n.parent != nil; n = n.parent {
		if slices.Contains(n.parent.ring, n) {
			return
		}
		n.parent.ring = append(n.parent.ring, n)
	}
}

// tidyLocked removes the node and those above it from rings if no request waits in
// them, and deletes them if they are unused.
func (n *node) tidyLocked() {
	for ; n.parent != nil; n = n.parent {
		if n.waits() {
			return
		}
		if i := slices.Index(n.parent.ring, n); i >= 0 {
			n.parent.ring = slices.Delete(n.parent.ring, i, i+1)
		}
		if n.used == 0 && len(n.children) == 0 {
			delete(n.parent.children, n.key)
		}
	}
}

// grantLocked grants places until none is free or no request waits.
func (t *Turns) grantLocked() {
	for {
		leaf := t.root.nextLocked()
		if leaf == nil {
			return
		}
		w := leaf.queue[0]
		leaf.queue = leaf.queue[1:]
		for n := leaf; n != nil; n = n.parent {
			n.used++
		}
		leaf.tidyLocked()
		close(w.turn)
	}
}

// nextLocked returns the leaf below n whose request is next, or nil if no place is
// free.
func (n *node) nextLocked() *node {
	if n.limit > 0 && n.used >= n.limit {
		return nil
	}
	if len(n.queue) > 0 {
		return n
	}
	for i, child := range n.ring {
		if leaf := child.nextLocked(); leaf != nil {
			n.ring = append(slices.Delete(n.ring, i, i+1), child)
			return leaf
		}
	}
	return nil
}

func (t *Turns) release(leaf *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := leaf; n != nil; n = n.parent {
		n.used--
	}
	leaf.tidyLocked()
	t.grantLocked()
}

// leave cancels a waiting request. It returns false if the place was granted
// meanwhile.
func (t *Turns) leave(leaf *node, w *waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(leaf.queue, w)
	if i < 0 {
		return false
	}
	leaf.queue = slices.Delete(leaf.queue, i, i+1)
	leaf.tidyLocked()
	return true
}
