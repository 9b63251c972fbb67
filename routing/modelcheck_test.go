package routing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// The checks. When all faults have ended and nothing is under way any more:
//   - A connected client has received all messages the host has sent on its connection,
//     unchanged and in order, and the host has received all messages from the client.
//   - A closed connection has delivered the first messages without a gap, and all of them if the
//     host closed it. The host has all messages from a client which left by itself.
//   - A link has ended only if a process ended or was cut off for longer than the resume
//     window. A connection has ended only with its link (4100 after silence, else 1012),
//     because host or client closed it, beyond a bound (1012 after a missing body), or
//     with 1013 because the client read nothing for too long, or was slow while memory
//     was short.
//   - A connection which has ended for the client has ended for the host too, and vice versa.
//   - No queue, packet or body remains in memory.
//   - If the network lost nothing, the host-agent sent each body once.
//
// In addition, each step checks bounds and invariants. A client or the host fails the plan as soon
// as anything arrives twice, before a connection is opened, or after it is closed.

// limit bounds the wait until everything has arrived. It is long, because little credit or a slow
// network delays messages.
const limit = 20 * time.Minute

// onTheWay checks the invariants between two steps.
func (r *run) onTheWay() error {
	if err := r.failure(); err != nil {
		return err
	}
	return r.audit(false)
}

func (r *run) audit(rest bool) error {
	a, _ := r.serving()
	if err := a.agent.Audit(rest); err != nil {
		return fmt.Errorf("%s: %w", a.name, err)
	}
	for _, p := range r.relays {
		if relay := p.current(); relay != nil {
			if err := relay.Audit(rest); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		} else if rest {
			return fmt.Errorf("%s has no link", p.name)
		}
	}
	return nil
}

// rest ends all faults and stalls, and waits until all checks for the end of a plan pass.
func (r *run) rest() error {
	r.mesh.Lose(0)
	r.mesh.Repeat(0)
	r.mesh.Damage(0)
	time.Sleep(time.Until(r.faultUntil))
	for _, c := range r.everybody() {
		c.pace.set(0, false)
		if h := r.host.conn(c.id); h != nil {
			h.pace.set(0, false)
		}
	}
	return r.settle()
}

func (r *run) settle() (err error) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
		if err := r.failure(); err != nil {
			return err
		}
		if err = r.settled(); err == nil {
			return nil
		}
	}
	a, _ := r.serving()
	text := a.agent.Dump()
	for _, p := range r.relays {
		if relay := p.current(); relay != nil {
			text += relay.Dump()
		}
	}
	return fmt.Errorf("%w\n%s", err, text)
}

func (r *run) settled() error {
	for _, c := range r.everybody() {
		if err := r.checkClient(c); err != nil {
			return fmt.Errorf("%s of %s: %w", c.id, c.relay.name, err)
		}
	}
	if err := r.checkLinks(); err != nil {
		return err
	}
	if err := r.audit(true); err != nil {
		return err
	}
	a, _ := r.serving()
	ctx, cancel := context.WithTimeout(r.life, time.Second)
	defer cancel()
	if a.links.Settle(ctx); ctx.Err() != nil {
		return fmt.Errorf("%s has packets that are not released", a.name)
	}
	return nil
}

// checkLinks returns an error if a link has ended more often than the faults at its two processes
// excuse.
func (r *run) checkLinks() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ends := map[[2]string]int{}
	for _, e := range r.linkEnds {
		pair := [2]string{e.relay, e.agent}
		if ends[pair]++; ends[pair] > r.excused[e.relay]+r.excused[e.agent] {
			return fmt.Errorf("the link between %s and %s has ended: %w", e.relay, e.agent, e.err)
		}
	}
	return nil
}

// linkEnded returns the error that ended a client's link, or nil.
func (r *run) linkEnded(c *client) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.linkEnds {
		if e.of == c.link {
			return e.err
		}
	}
	return nil
}

func (r *run) reportedOf(conn string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reported[conn]
}

// checkClient compares the records of a client and of the host for one connection.
func (r *run) checkClient(c *client) error {
	h := r.host.conn(c.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if h == nil {
		if !c.endedLocked() || r.linkEnded(c) == nil && !c.killed {
			return errors.New("the host has no connection for this client")
		}
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.endedLocked() != (h.gone || h.dead) {
		return fmt.Errorf("it has ended at one side only: at the client %v, at the host %v", c.endedLocked(), h.gone || h.dead)
	}
	all, allUp, err := r.expected(c, h)
	if err == nil {
		err = compare("client", c.got, h.sent, all)
	}
	if err == nil {
		err = compare("host", h.got, c.sent, allUp)
	}
	if err == nil && allUp && len(c.sent) != c.asked {
		err = fmt.Errorf("the client has sent %d of %d messages", len(c.sent), c.asked)
	}
	if err == nil {
		err = c.checkReady()
	}
	if err == nil {
		err = checkFlushes(c, h)
	}
	if n := r.reportedOf(c.id); err == nil && n != h.own && r.linkEnded(c) == nil && !c.killed && !h.dead {
		err = fmt.Errorf("the delays of %d messages of the host are reported; want %d", n, h.own)
	}
	return err
}

// expected returns two answers: whether the client must have received everything from the host
// (down), and whether the host must have received everything from the client (up). It returns an
// error if the connection ended without a valid reason.
func (r *run) expected(c *client, h *modelConn) (down, up bool, err error) {
	ended := r.linkEnded(c)
	hostEnded := h.closing != 0 || h.full || h.cut || h.dead || r.excused[h.agent] > 0
	up = ended == nil && !hostEnded && c.code == 0 && !c.killed && (r.bounds.Total == 0 || !c.endedLocked())
	switch {
	case c.code == 0 || c.killed:
		return !c.endedLocked(), up, nil
	case ended != nil && strings.HasSuffix(ended.Error(), c.reason):
		want := ahp.CloseResync
		if errors.Is(ended, link.ErrSilent) {
			want = ahp.CloseHostOffline
		}
		if c.code != want {
			return false, up, fmt.Errorf("the connection was closed with %d (%s); want %d", c.code, c.reason, want)
		}
		return false, up, nil
	case h.closing != 0 && c.code == h.closing && c.reason == h.reason, r.excused[h.agent] > 0 && c.code == ahp.CloseHostOffline && c.reason == agentStops:
		return r.bounds.Total == 0, up, nil // the queue before a close may exceed the bound
	case h.cut && c.code == ahp.CloseOverloaded && c.reason == crowdStalls && h.largestCrowd() > orDefault(r.bounds.Queue, 8<<20):
		return false, up, nil
	case h.full && c.code == ahp.CloseOverloaded && r.tookNothing(c):
		return false, up, nil
	case r.bounds.Total > 0 && c.code == ahp.CloseOverloaded && strings.HasPrefix(c.reason, "queues for all clients") && r.wasSlow(c, h):
		return false, false, nil
	case (r.disturbed || r.bounds.Bodies > 0) && c.code == ahp.CloseResync && strings.HasPrefix(c.reason, "too many bytes wait") && h.total > orDefault(r.bounds.Pending, 8<<20):
		return false, up, nil
	}
	return false, up, fmt.Errorf("the connection was closed with %d (%s) for no reason", c.code, c.reason)
}

// largestCrowd returns the most bytes that a crowd was told which the connection was in.
func (c *modelConn) largestCrowd() (most int) {
	for _, crowd := range c.crowds {
		most = max(most, int(crowd.bytes.Load()))
	}
	return most
}

// tookNothing reports whether the relay had a reason to close a client as stalled: the client read
// nothing for as long as stall. A cut may count toward that time.
func (r *run) tookNothing(c *client) bool {
	least := stall
	if !r.faultUntil.IsZero() {
		least -= resume
	}
	_, longest := c.pace.was()
	return longest >= least-time.Second
}

// stall is the time after which a client that reads nothing is closed.
const stall = 25 * time.Second

// wasSlow reports whether a connection may be closed for lack of memory: its client or the host's
// reader was slow, there was a cut, or the memory does not suffice for all connections.
func (r *run) wasSlow(c *client, h *modelConn) bool {
	client, _ := c.pace.was()
	host, _ := h.pace.was()
	return client || host || r.bounds.Total < enough || !r.faultUntil.IsZero()
}

// enough is a bound in bytes that suffices for the connections in each plan.
const enough = 4 << 20

func orDefault(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}

// compare checks that got is equal to sent, or to its beginning unless all is set.
func compare(who string, got, sent [][]byte, all bool) error {
	if len(got) > len(sent) || all && len(got) < len(sent) {
		return fmt.Errorf("the %s has received %d of %d messages", who, len(got), len(sent))
	}
	for i := range got {
		if !bytes.Equal(got[i], sent[i]) {
			return fmt.Errorf("message %d that the %s has got is %.60q of %d bytes; want %.60q of %d", i, who, got[i], len(got[i]), sent[i], len(sent[i]))
		}
	}
	return nil
}

// checkReady checks that the client got the event Ready before the host's answer to hello.
func (c *client) checkReady() error {
	for i, m := range c.got {
		if bytes.HasPrefix(m, []byte("welcome")) && (c.ready < 0 || c.ready > i) {
			return fmt.Errorf("message %d lets the client in, and Ready came behind %d", i, c.ready)
		}
	}
	return nil
}

// checkFlushes checks each flush: the host saw it after all messages that the client had sent
// before it, and the client got its answer after all messages that the host had sent by then. An
// open connection has an answer to each flush.
func checkFlushes(c *client, h *modelConn) error {
	if n := len(c.flushes); len(c.flushed) > n || len(h.flushes) > n || !c.endedLocked() && len(c.flushed) < n {
		return fmt.Errorf("%d flushes were requested, %d reached the host, and %d were confirmed", n, len(h.flushes), len(c.flushed))
	}
	for i, f := range h.flushes {
		if f.got < c.flushes[i] {
			return fmt.Errorf("flush %d reached the host after %d messages; want %d", i, f.got, c.flushes[i])
		}
		if i < len(c.flushed) && c.flushed[i] < f.sent {
			return fmt.Errorf("flush %d was confirmed before %d of %d earlier messages", i, f.sent-c.flushed[i], f.sent)
		}
	}
	return nil
}

// ended reports whether a client has disconnected.
func (c *client) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endedLocked()
}

func (c *client) endedLocked() bool { return c.code != 0 || c.left || c.killed }

// tellOnce puts all connections into a crowd, and checks that a message to it crosses each link
// once. Nothing else is under way.
func (r *run) tellOnce() error {
	for _, c := range r.everybody() {
		if !c.ended() {
			r.enterCrowd(c, 0, 0)
		}
	}
	time.Sleep(time.Minute)
	a, _ := r.serving()
	var crossed atomic.Int64
	r.watch(func(_ string, data []byte) { crossed.Add(int64(bytes.Count(data, []byte("told once")))) })
	r.host.tell(a.crowds[0], "once", 300, 1)
	err := r.settle()
	r.watch(nil)
	if n := int(crossed.Load()); err == nil && n > len(r.relays) {
		err = fmt.Errorf("a message to a crowd crossed %d times; there are %d relays", n, len(r.relays))
	}
	return err
}

// crossOnce checks that the host-agent sends the text of a message once, although several
// connections get it. Nothing else is under way.
func (r *run) crossOnce() error {
	if r.bounds.Sealed {
		return r.tellOnce()
	}
	r.mu.Lock()
	answers := r.answers
	r.mu.Unlock()
	if answers > 0 && !r.disturbed && r.bounds.Bodies == 0 {
		return fmt.Errorf("%d bodies were requested again although the network lost nothing", answers)
	}
	if r.bounds.Window > 0 && r.bounds.Window < 16<<10 || r.bounds.Pinned > 0 && r.bounds.Pinned < 64<<10 {
		return nil // with such small bounds, the host-agent shares no bodies
	}
	for channel := range 3 {
		for range 3 { // the first events make the relays subscribe to the shared bodies
			r.host.event(channel, 200, "")
			time.Sleep(time.Second)
		}
		crossed := map[string]int{}
		tag := fmt.Sprintf(" once%d", channel)
		r.watch(func(_ string, data []byte) {
			for v := range 2 {
				form := fmt.Sprintf("action v%d c%d%s", v, channel, tag)
				crossed[form] += bytes.Count(data, []byte(form))
			}
		})
		r.host.event(channel, 200, tag)
		time.Sleep(time.Second)
		r.watch(nil)
		for form, n := range crossed {
			if n > 1 {
				return fmt.Errorf("%q crossed %d times", form, n)
			}
		}
	}
	return r.settle()
}

// watch passes everything that a host-agent publishes to f from now on; nil ends that.
func (w *modelWorld) watch(f func(subject string, data []byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = f
}

// kill records that a client's relay has crashed or stopped, which ends the client.
func (c *client) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed = true
}

// kill records that a host-agent has crashed, which ends its connections.
func (h *modelHost) kill(agent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.order {
		c.mu.Lock()
		c.dead = c.dead || c.agent == agent
		c.mu.Unlock()
	}
}
