// Package fair has many take turns at few places.
//
// Whoever wants a place names itself by a path, such as tenant, host, client.
// On each level of the path there is a number of places that one may have; with
// more, it waits in turn. Where several wait for the same place, those who have it
// in common take turns: tenants, within a tenant its hosts, within a host its
// clients. So what one asks for holds up itself, and one that asks for little
// waits for no more than a turn of each other.
//
// Turns bound how many work at a time, and [Shares] how much of the time a tenant works
// while another tenant is active.
//
// Strangers are told apart by the networks of their addresses ([Site], [Networks]). In a
// [Room] of few places the oldest of the busiest network makes place for one more.
//
// # Concurrency
//
// [Turns] and [Shares] are safe for concurrent use.
package fair

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrFull reports that too many of one wait already.
var ErrFull = errors.New("too many are waiting")

// Turns are places that many take turns at.
type Turns struct {
	waiting int
	limits  []int

	mu   sync.Mutex // guards all nodes
	root node
}

// A node is one on a level, with those below it.
type node struct {
	parent *node // nil: the root
	key    any
	limit  int // 0: none

	used     int
	children map[any]*node
	ring     []*node   // those children somewhere below which somebody waits; the next in turn first
	queue    []*waiter // on the last level
}

type waiter struct{ turn chan struct{} }

// New returns Turns with paths as long as limits, which are how many places one
// on each level may have. On the last level so many of one may wait.
func New(waiting int, limits ...int) *Turns { return &Turns{waiting: waiting, limits: limits} }

// Take waits for a place, until ctx ends. Call done when it is free again. The
// error is that of ctx, or ErrFull.
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
		done() // its turn has come meanwhile
	}
	return nil, ctx.Err()
}

// Contended reports whether somebody waits for a place now.
func (t *Turns) Contended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.root.waits()
}

// findLocked returns the node of a path, which is made if it is not there.
func (t *Turns) findLocked(path []any) *node {
	if len(path) != len(t.limits) {
		panic("fair: a path of another length")
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

// waits reports whether somebody does, here or below.
func (n *node) waits() bool { return len(n.queue) > 0 || len(n.ring) > 0 }

// awaitLocked notes on all levels above that somebody waits here.
func (n *node) awaitLocked() {
	for ; n.parent != nil; n = n.parent {
		if slices.Contains(n.parent.ring, n) {
			return
		}
		n.parent.ring = append(n.parent.ring, n)
	}
}

// tidyLocked undoes that where nobody waits any more, and forgets who has
// nothing.
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

// grantLocked gives places to all whose turn it is.
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

// nextLocked returns the node below n whose turn it is, nil if no place is free.
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

// leave reports whether a waiter has left before its turn came.
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
