package gateway

import (
	"math"
	"runtime"
	"sync"

	"ahprelay/internal/ablation"
)

// yieldAfter is the number of batches after which a writing goroutine lets other goroutines run. Without
// that, it keeps its processor for 10 ms.
const yieldAfter = 8

// writers lets outboxes write. The outboxes of a tenant take turns, a batch each, at a few places, which are
// goroutines. A tenant with thousands of clients therefore has only a few goroutines that are ready to run, and
// other tenants' goroutines soon get a processor. An outbox leaves its place while the kernel does not accept
// its batch.
type writers struct {
	places    int               // of each tenant
	spawn     func(func()) bool // starts a goroutine that the server waits for; may be called under mu
	contended func(string) bool // reports whether a tenant other than this is active; may be called under mu

	mu      sync.Mutex // guards the field below and its values
	tenants map[string]*writing
}

// A writing is the state of a tenant with outboxes that write. It is nil for any other tenant.
type writing struct {
	busy  int       // number of places in use
	queue []*outbox // outboxes that wait for a place
}

func newWriters(spawn func(func()) bool, contended func(tenant string) bool) *writers {
	w := &writers{places: runtime.GOMAXPROCS(0), spawn: spawn, contended: contended, tenants: map[string]*writing{}}
	if ablation.WriteTurns {
		w.places = math.MaxInt
	}
	return w
}

// add gives an outbox a place, or lets it wait for one. It returns false if the server has
// ended.
func (w *writers) add(o *outbox) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenants[o.tenant]
	if t != nil && w.full(o.tenant, t.busy) {
		t.queue = append(t.queue, o)
		return true
	}
	if !w.spawn(func() { w.work(o) }) {
		return false
	}
	if t == nil {
		t = &writing{}
		w.tenants[o.tenant] = t
	}
	t.busy++
	return true
}

// work writes the batch of an outbox, and then those of the outboxes that wait, as long as it has the
// place.
func (w *writers) work(o *outbox) {
	l := writeBatches.Get().(*writeBatch)
	defer writeBatches.Put(l)
	for n := 1; o != nil; n++ {
		more, kept := o.write(l)
		if !kept {
			return
		}
		yields := n%yieldAfter == 0
		if o = w.next(o, more, yields); yields {
			runtime.Gosched()
		}
	}
}

// next returns the outbox that has the place after o, or nil. If o has more to write, it waits
// for its next turn. With yields, the place is freed if the tenant has too many now.
func (w *writers) next(o *outbox, more, yields bool) *outbox {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenants[o.tenant]
	if len(t.queue) == 0 {
		if more {
			return o
		}
		w.freeLocked(o.tenant, t)
		return nil
	}
	if more {
		t.queue = append(t.queue, o)
	}
	if yields && w.full(o.tenant, t.busy-1) {
		w.freeLocked(o.tenant, t)
		return nil
	}
	return t.firstLocked()
}

// full reports whether a tenant must not get a place beyond its busy ones. While a different tenant is active, one place
// stays free: Go's scheduler polls the network only every 10 ms while all processors have work.
func (w *writers) full(tenant string, busy int) bool {
	return busy >= w.places || busy > 0 && busy == w.places-1 && w.contended(tenant)
}

// leave gives up a place. The next outbox that waits gets a goroutine of its own, which first lets other goroutines run:
// many outboxes in a row may leave their places.
func (w *writers) leave(tenant string) {
	w.mu.Lock()
	t := w.tenants[tenant]
	if len(t.queue) == 0 || w.full(tenant, t.busy-1) {
		w.freeLocked(tenant, t)
		w.mu.Unlock()
		return
	}
	o := t.firstLocked()
	w.mu.Unlock()
	if w.spawn(func() { runtime.Gosched(); w.work(o) }) {
		return
	}
	for ; o != nil; o = w.next(o, false, false) { // the server has ended
		o.lose()
	}
}

func (w *writers) freeLocked(tenant string, t *writing) {
	if t.busy--; t.busy == 0 {
		delete(w.tenants, tenant)
	}
}

// firstLocked removes the outbox that has waited longest from the queue.
func (t *writing) firstLocked() *outbox {
	o := t.queue[0]
	t.queue[0] = nil
	t.queue = t.queue[1:]
	return o
}
