// Package idle has connections on which nothing happens cost little: no buffer,
// and a goroutine with the smallest of stacks.
//
// A goroutine that reads messages needs a deep stack now and then, and keeps it
// while it waits for the next one. So whoever reads waits with a [Waiter], and
// has what comes handled by [Deep].
package idle

import (
	"net"
	"sync"
	"syscall"
)

// A Waiter waits for what comes on a connection of the kernel's.
type Waiter struct{ raw syscall.RawConn }

// NewWaiter returns a Waiter for a connection, or nil if one must read to wait:
// it is not the kernel's, or this system has no way to.
func NewWaiter(conn net.Conn) *Waiter {
	system, ok := conn.(syscall.Conn)
	if !ok || !waits {
		return nil
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return nil
	}
	return &Waiter{raw}
}

// Wait returns when there is something to read, or an error: reading tells
// which. A read deadline, or Close, ends it too.
func (w *Waiter) Wait() { _ = w.raw.Read(readable) }

// Deep calls f in another goroutine, and returns when f does: the stack that f
// needs is not kept.
func Deep(f func()) {
	var done sync.WaitGroup
	done.Go(f)
	done.Wait()
}
