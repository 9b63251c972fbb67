package gateway

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/audit"
	"ahprelay/routing"
)

// A budget counts the bytes that wait in the relay, for all clients and from
// all clients, and what else takes memory with their number. Its nil pointer
// counts nothing.
type budget struct {
	limit int64
	over  chan struct{} // holds one: memory is short

	used   atomic.Int64 // what waits
	beside atomic.Int64 // connections, what kernels hold of them, bodies and chunks
	conns  atomic.Int64 // of those, what connections take that do nothing
	short  atomic.Bool  // nothing is left that could be given up

	held atomic.Pointer[holding] // nil: sources have never been held back

	uploads uploads
}

// A holding is what is known of holding sources back. It does not change.
type holding struct {
	before time.Duration // for how long they were held back, in all
	since  time.Time     // when they began to be held back once more
	over   chan struct{} // and until when: closed then; nil: they are not held back
}

// newBudget returns a budget of so many bytes, for messages of at most longest.
func newBudget(limit, longest int) *budget {
	b := &budget{limit: int64(limit), over: make(chan struct{}, 1)}
	b.uploads = uploads{budget: b, claim: int64(longest), eased: make(chan struct{}, 1)}
	return b
}

// add counts n bytes more, or less, that wait.
func (b *budget) add(n int) {
	if b != nil {
		b.count(&b.used, n)
	}
}

// keep counts n bytes more, or less, that are in use otherwise.
func (b *budget) keep(n int) { b.count(&b.beside, n) }

func (b *budget) count(what *atomic.Int64, n int) {
	if n == 0 {
		return
	}
	what.Add(int64(n))
	switch {
	case n > 0:
		b.alarm()
	case b.uploads.waits.Load() > 0:
		select {
		case b.uploads.eased <- struct{}{}:
		default:
		}
	}
}

// alarm calls for relief if memory is short.
func (b *budget) alarm() {
	if b.pressure() > 0 {
		select {
		case b.over <- struct{}{}:
		default:
		}
	}
}

// What a connection takes that does nothing, at least, in bytes: in the process
// and in the kernel.
const (
	connCost = 16 << 10
	tlsCost  = 32 << 10 // besides
)

// reserve counts a connection, until leave is called.
func (b *budget) reserve(tls bool) (leave func()) {
	cost := connCost
	if tls {
		cost += tlsCost
	}
	b.conns.Add(int64(cost))
	b.keep(cost)
	return func() {
		b.conns.Add(-int64(cost))
		b.keep(-cost)
	}
}

// full reports whether there is no memory for another connection: those that are
// there take half of it, or all is in use and nothing of that can be given up.
func (b *budget) full() bool {
	return b.conns.Load() > b.limit/2 || b.short.Load() && b.excess() > 0
}

// charge counts frames that were put into a queue. Memory of which several queues
// hold parts counts once.
func (b *budget) charge(frames []routing.Frame) {
	n := 0
	for i := range frames {
		n += frameCost
		switch shared := frames[i].Shared; {
		case shared == nil:
			n += len(frames[i].Data)
		case shared.Holders.Add(1) == 1:
			n += shared.Size
		}
	}
	b.add(n)
}

// refund takes back what charge counted.
func (b *budget) refund(frames []routing.Frame) {
	n := 0
	for i := range frames {
		n += frameCost
		switch shared := frames[i].Shared; {
		case shared == nil:
			n += len(frames[i].Data)
		case shared.Holders.Add(-1) == 0:
			n += shared.Size
		}
	}
	b.add(-n)
}

// refuseFull answers a client for which there is no memory (RFC 9110, section
// 15.6.4).
func (s *Server) refuseFull(w http.ResponseWriter, r *http.Request, who auth.Client) {
	const reason = "this relay has no memory for more connections"
	s.caller.Refuse("memory", "", audit.Line{Host: r.PathValue("host"), Address: s.caller.Address(r), Reason: reason}.Of(who))
	w.Header().Set("Retry-After", "5")
	http.Error(w, ahp.CloseOverloaded.Reason()+": "+reason, http.StatusServiceUnavailable)
}

// excess is how many bytes more are in use than may be; negative if there is
// room.
func (b *budget) excess() int64 { return b.used.Load() + b.beside.Load() - b.limit }

// pressure is how many bytes more are in use than should be: memory is short
// before all of it is in use.
func (b *budget) pressure() int64 { return b.excess() + b.limit/reliefShare }

// hold waits while sources are held back.
func (b *budget) hold() {
	if b == nil {
		return
	}
	if held := b.held.Load(); held != nil && held.over != nil {
		<-held.over
	}
}

// holdBack holds sources back until the returned function is called. Only relieve
// may call it.
func (b *budget) holdBack() (release func()) {
	held := &holding{since: time.Now(), over: make(chan struct{})}
	if former := b.held.Load(); former != nil {
		held.before = former.before
	}
	b.held.Store(held)
	return func() {
		b.held.Store(&holding{before: held.before + time.Since(held.since)})
		close(held.over)
	}
}

// clock is the time in ns, but stands while sources are held back: who waits for what
// they say cannot show meanwhile that it goes on.
func (b *budget) clock(now time.Time) (ns int64) {
	ns = now.UnixNano()
	if held := b.held.Load(); held != nil {
		ns -= int64(held.before)
		if held.over != nil {
			ns -= max(0, int64(now.Sub(held.since)))
		}
	}
	return ns
}

// relieve makes room whenever memory is short, until the server ends. Sources are
// held back meanwhile: so those that take what they are sent get on, and those
// that take nothing are soon known, and closed.
func (s *Server) relieve() {
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.budget.over:
		}
		if s.budget.pressure() > 0 {
			s.makeRoom()
			s.budget.alarm()
		}
	}
}

const (
	// reliefShare is the part of the limit from which on memory is short.
	reliefShare = 4

	// provenTime is how long a client has stood still that takes nothing, as far
	// as can be told, and patience how long sources are held back at most to know.
	provenTime = 1500 * time.Millisecond
	patience   = 2500 * time.Millisecond

	// lookTime is how often that is looked at, and shortTime how often if nothing
	// was to be had.
	lookTime  = 10 * time.Millisecond
	shortTime = 100 * time.Millisecond
)

// makeRoom closes clients until memory is no longer short: those that have stood
// still for provenTime, and only if all of the memory is in use, or patience has
// not helped, any others.
func (s *Server) makeRoom() {
	release := sync.OnceFunc(s.budget.holdBack())
	defer release()
	s.hosts.shed()
	for _, c := range s.hosts.all() {
		c.noteLoad()
	}
	for began := time.Now(); s.budget.pressure() > 0 && s.life.Err() == nil; {
		now := time.Now()
		s.overload(now, s.budget.pressure(), provenTime, false)
		if s.budget.excess() > 0 || now.Sub(began) >= patience {
			left := s.overload(now, s.budget.pressure(), 0, s.budget.excess() > 0)
			s.budget.short.Store(left > 0)
			if left > 0 || now.Sub(began) >= patience {
				release()
				wait(s.life, time.After(shortTime))
				return
			}
		}
		wait(s.life, time.After(lookTime)) // what was given up has a moment to go
	}
}

// reliefSteps are how many bytes must wait on a client's account for it to be
// closed: those with less come after all that have more. Hardly anything is won
// by closing one that waits for its host with a small request.
var reliefSteps = []int{4 << 10, 1}

// A burden is what waits on account of a client, and since when nothing of it
// has moved.
type burden struct {
	*client
	bytes   int
	since   time.Time
	inTurns bool // it sends a large message, which goes on, or waits for others or its host, for less than stillTime
}

// overload closes clients that have stood still for that long, until so many
// bytes will be free: of those with something to win, first those that have stood
// still for longest, and among those that move the ones that have most. Those that
// take turns are closed only if turns is set. It returns how many bytes are still to
// be found.
func (s *Server) overload(now time.Time, want int64, still time.Duration, turns bool) (left int64) {
	clients := s.hosts.all()
	for _, c := range clients {
		c.noteMoved(now)
	}
	var burdens []burden
	for _, c := range clients {
		b := c.burden(now)
		if c.cut.Load() {
			want -= int64(b.bytes) // it is going
		} else if b.bytes > 0 && now.Sub(b.since) >= still && (!b.inTurns || turns) {
			burdens = append(burdens, b)
		}
	}
	slices.SortFunc(burdens, func(a, b burden) int {
		if d := reliefStep(a.bytes) - reliefStep(b.bytes); d != 0 {
			return d
		}
		if d := a.since.Compare(b.since); d != 0 {
			return d
		}
		return b.bytes - a.bytes
	})
	for _, b := range burdens {
		if want <= 0 {
			break
		}
		b.overload(now.Sub(b.since))
		want -= int64(b.bytes)
	}
	return want
}

func reliefStep(bytes int) int {
	return slices.IndexFunc(reliefSteps, func(least int) bool { return bytes >= least })
}

// burden returns what waits on account of a client, as noteMoved has just seen it.
func (c *client) burden(now time.Time) burden {
	b := burden{client: c, since: now}
	c.mu.Lock()
	in := c.bytes
	c.mu.Unlock()
	c.load.mu.Lock()
	queued := c.load.queued
	c.load.mu.Unlock()
	in += queued + int(c.whole.Load()+c.sending.Load())
	switch {
	case in == 0:
	case c.slowed.Load():
		b.inTurns = true
	default:
		moved := c.lastMoved(now, queued)
		b.standsFrom(moved)
		b.inTurns = in > keepBuffer && now.Sub(moved) < stillTime
	}
	coming, moved := c.budget.uploads.state(&c.upload, now)
	if coming > 0 {
		b.standsFrom(moved)
		b.inTurns = b.inTurns || now.Sub(moved) < turnTime
	}
	if since := c.sock.conn.standsSince(); !since.IsZero() {
		b.standsFrom(since)
	}
	b.bytes = in + coming + c.out.held() + int(c.kernel.Load())
	return b
}

func (b *burden) standsFrom(since time.Time) {
	if since.Before(b.since) {
		b.since = since
	}
}

// lastMoved is since when nothing has moved of what a client has sent, so many
// bytes of which are queued for the host. While a host takes another large
// message, those that wait for their turn there do not stand still, nor does
// anything while the relay takes no host's word that more may come.
func (c *client) lastMoved(now time.Time, queued int) time.Time {
	moved := c.moved.Load()
	if queued > keepBuffer {
		moved = max(moved, c.entry.moved.Load())
	}
	return now.Add(min(0, time.Duration(moved-c.budget.clock(now))))
}

// progressed notes that something has moved of what a client sends.
func (c *client) progressed(now time.Time) { c.moved.Store(c.budget.clock(now)) }

// A load is what was last seen of what a client sends and is sent.
type load struct {
	mu       sync.Mutex // guards all that follows
	written  uint64     // lockedConn.written, by noteLoad
	received uint64     // lockedConn.taken, by noteLoad
	read     uint64     // the same, by noteMoved
	queued   int        // bytes for the host, by noteMoved
}

// noteMoved looks whether anything moves of what a client sends: who judges that
// looks first.
func (c *client) noteMoved(now time.Time) {
	queued := 0
	if host := c.toHost(); host != nil {
		queued = host.Queued()
	}
	read := c.sock.conn.taken.Load()
	c.load.mu.Lock()
	defer c.load.mu.Unlock()
	if read != c.load.read || queued != c.load.queued {
		c.progressed(now)
	}
	if c.load.queued > keepBuffer && queued < c.load.queued {
		c.entry.moved.Store(c.budget.clock(now))
	}
	c.load.read, c.load.queued = read, queued
}

// noteLoad looks how much of a client's the kernel holds, and tells the host-agent
// if it takes what it is sent. The sweeper calls it, and who is to judge that.
func (c *client) noteLoad() {
	conn := c.sock.conn
	host := c.toHost()
	c.load.mu.Lock()
	defer c.load.mu.Unlock()
	written, heard := conn.written.Load(), conn.taken.Load()
	if written != c.load.written || heard != c.load.received || c.kernel.Load() > 0 {
		c.setKernel(kernelCost(kernelQueued(conn.Conn)))
	}
	if host != nil && written != c.load.written {
		host.Progress()
	}
	c.load.written, c.load.received = written, heard
}

// toHost returns a client's connection to its host; nil if there is none.
func (c *client) toHost() upstream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// kernelCost is what bytes in its queues cost the kernel: it keeps them in
// pieces.
func kernelCost(bytes int) int { return bytes + bytes/4 }

// setKernel notes what the kernel holds of the connection.
func (c *client) setKernel(n int) { c.budget.keep(n - int(c.kernel.Swap(int64(n)))) }

// overload closes a client on whose account too much waits, and drops that. One
// that has been standing still is in the middle of a message: nothing can be
// said to it.
func (c *client) overload(standing time.Duration) {
	c.cut.Store(true)
	const reason = "too much waits for all clients of this relay"
	end := c.out.abort(closing{code: ahp.CloseOverloaded, reason: closeReason(ahp.CloseOverloaded, reason), full: true})
	c.log().Warn("client closed: too much waits for all together", "stood_still", standing.Round(time.Millisecond))
	c.abort(end)
	c.doneReading()
	if standing >= writeLook {
		c.sock.drop()
	}
}

// abort is disconnect, and drops what has not left for the host.
func (c *client) abort(end closing) {
	if conn := c.toHost(); conn != nil {
		conn.Abort(end.code, end.reason)
	}
	c.disconnect(end)
}
