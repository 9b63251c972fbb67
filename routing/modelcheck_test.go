package routing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// The oracle. At rest, after all faults:
//   - A connected client has received all messages the host has sent on its connection,
//     unchanged and in order, and the host has received all messages from the client.
//   - A closed connection has delivered a prefix of the messages, and all of them if the
//     host has closed it. The host has all messages from a client which left by itself.
//   - A link has ended only if a process ended or was cut off for longer than the resume
//     window. A connection has ended only with its link (4100 after silence, else 1012),
//     because host or client closed it, beyond a bound (1012 after a missing body), or
//     with 1013 because the client read nothing for too long, or was slow while memory
//     was short.
//   - Each side knows that the other side has ended.
//   - No state is left over.
//   - If nothing was lost, each body was sent once.
//
// In addition, each step checks bounds and invariants, and that nothing arrives twice,
// before a connection is opened, or after it is closed.

// limit bounds the time until the model rests. It is long with little credit or slow
// networks.
const limit = 20 * time.Minute

// onTheWay checks the invariants between steps.
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

// rest ends all faults and checks the result.
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

// checkLinks checks that links ended for a valid reason.
func (r *run) checkLinks() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ends := map[[2]string]int{}
	for _, e := range r.linkEnds {
		pair := [2]string{e.relay, e.agent}
		if ends[pair]++; ends[pair] > r.excused[e.relay]+r.excused[e.agent] {
			return fmt.Errorf("link between %s and %s ended: %w", e.relay, e.agent, e.err)
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

// checkClient checks one connection, which may have ended on either side.
func (r *run) checkClient(c *client) error {
	h := r.host.conn(c.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if h == nil {
		if !c.endedLocked() || r.linkEnded(c) == nil && !c.killed {
			return errors.New("the host knows nothing of it")
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
		err = fmt.Errorf("%d of %d messages sent", len(c.sent), c.asked)
	}
	if err == nil {
		err = c.checkReady()
	}
	if err == nil {
		err = checkFlushes(c, h)
	}
	if n := r.reportedOf(c.id); err == nil && n != len(h.sent) && r.linkEnded(c) == nil && !c.killed && !h.dead {
		err = fmt.Errorf("%d messages of the host are reported; want %d", n, len(h.sent))
	}
	return err
}

// expected returns whether the client must have received everything from the host, and
// the host everything from the client. An error reports a connection that ended
// without a valid reason.
func (r *run) expected(c *client, h *modelConn) (down, up bool, err error) {
	ended := r.linkEnded(c)
	hostEnded := h.closing != 0 || h.full || h.dead || r.excused[h.agent] > 0
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
			return false, up, fmt.Errorf("closed with %d (%s); want %d", c.code, c.reason, want)
		}
		return false, up, nil
	case h.closing != 0 && c.code == h.closing && c.reason == h.reason, r.excused[h.agent] > 0 && c.code == ahp.CloseHostOffline && c.reason == agentStops:
		return r.bounds.Total == 0, up, nil // the queue behind a close may exceed the bound too
	case h.full && c.code == ahp.CloseOverloaded && r.tookNothing(c):
		return false, up, nil
	case r.bounds.Total > 0 && c.code == ahp.CloseOverloaded && strings.HasPrefix(c.reason, "queues for all clients") && r.wasSlow(c, h):
		return false, false, nil
	case (r.disturbed || r.bounds.Bodies > 0) && c.code == ahp.CloseResync && strings.HasPrefix(c.reason, "too many bytes wait") && h.total > orDefault(r.bounds.Pending, 8<<20):
		return false, up, nil
	}
	return false, up, fmt.Errorf("closed with %d (%s) for no reason", c.code, c.reason)
}

// tookNothing reports whether a client may be closed as stalled: it read nothing for
// as long as stock clients wait, except during a cut.
func (r *run) tookNothing(c *client) bool {
	least := stall
	if !r.faultUntil.IsZero() {
		least -= resume
	}
	_, longest := c.pace.was()
	return longest >= least-time.Second
}

// stall is the longest time that a client may read nothing.
const stall = 25 * time.Second

// wasSlow reports whether a connection may be closed for lack of memory. If memory
// suffices for every connection's allowance, only a slow connection may.
func (r *run) wasSlow(c *client, h *modelConn) bool {
	client, _ := c.pace.was()
	host, _ := h.pace.was()
	return client || host || r.bounds.Total < enough || !r.faultUntil.IsZero()
}

// enough is sufficient memory for a plan.
const enough = 4 << 20

func orDefault(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}

// compare checks that got is a prefix of sent, or equal.
func compare(who string, got, sent [][]byte, all bool) error {
	if len(got) > len(sent) || all && len(got) < len(sent) {
		return fmt.Errorf("the %s has got %d messages of %d", who, len(got), len(sent))
	}
	for i := range got {
		if !bytes.Equal(got[i], sent[i]) {
			return fmt.Errorf("message %d that the %s has got is %.60q of %d bytes; want %.60q of %d", i, who, got[i], len(got[i]), sent[i], len(sent[i]))
		}
	}
	return nil
}

// checkReady checks that the event Ready precedes the answer that lets a client in.
func (c *client) checkReady() error {
	for i, m := range c.got {
		if bytes.HasPrefix(m, []byte("welcome")) && (c.ready < 0 || c.ready > i) {
			return fmt.Errorf("message %d lets the client in, and Ready came behind %d", i, c.ready)
		}
	}
	return nil
}

// checkFlushes checks that answers to flushes follow the flushed messages, and that
// all arrive while a connection is open.
func checkFlushes(c *client, h *modelConn) error {
	if n := len(c.flushes); len(c.flushed) > n || len(h.flushes) > n || !c.endedLocked() && len(c.flushed) < n {
		return fmt.Errorf("%d flushes, %d seen by the host, %d answered", n, len(h.flushes), len(c.flushed))
	}
	for i, f := range h.flushes {
		if f.got < c.flushes[i] {
			return fmt.Errorf("flush %d came behind %d messages; want %d", i, f.got, c.flushes[i])
		}
		if i < len(c.flushed) && c.flushed[i] < f.sent {
			return fmt.Errorf("flush %d was answered before %d of %d messages", i, f.sent-c.flushed[i], f.sent)
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

// crossOnce checks, at rest, that a message for several connections leaves the
// host-agent once.
func (r *run) crossOnce() error {
	r.mu.Lock()
	answers := r.answers
	r.mu.Unlock()
	if answers > 0 && !r.disturbed && r.bounds.Bodies == 0 {
		return fmt.Errorf("%d bodies were missed, and nothing was lost", answers)
	}
	if r.bounds.Window > 0 && r.bounds.Window < 16<<10 || r.bounds.Pinned > 0 && r.bounds.Pinned < 64<<10 {
		return nil // too small to share
	}
	for channel := range 3 {
		for range 3 { // the relays must listen first
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

// watch passes published bodies to f from now on.
func (w *modelWorld) watch(f func(subject string, data []byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = f
}

// kill records that a client has ended with its relay.
func (c *client) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed = true
}

// kill records that a host-agent's connections have ended with it.
func (h *modelHost) kill(agent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.order {
		c.mu.Lock()
		c.dead = c.dead || c.agent == agent
		c.mu.Unlock()
	}
}
