package hostagent

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
)

// Some clients send an action that was rejected again at once, and do so without end: each
// rejection changes the state that made them send it. They are counted by action and by client, and
// slowed down: the client's next message is read only after a while.

// Bounds of rejected actions.
const (
	rejectedAtOnce = 64          // of one action on one connection, without a delay; a window of VS Code sends some 40 when it connects
	rejectedEvery  = time.Second // between those that follow
	rejectedNames  = 16          // of clients that have series of their own
	rejectedName   = 32          // bytes of such a name
)

// otherClient is the label of clients without a series of their own.
const otherClient = "other"

// A pace slows down a client that repeats rejected actions. Its methods are not called at once.
type pace struct {
	due map[string]time.Time // by action, bounded by the labels of actions: when all so far would be, one at a time
}

// wait returns how long a client is to wait behind a rejected action, at most rejectedEvery.
func (p *pace) wait(action string, now time.Time) time.Duration {
	if p.due == nil {
		p.due = map[string]time.Time{}
	}
	due := p.due[action]
	if due.Before(now) {
		due = now
	}
	due = due.Add(rejectedEvery)
	p.due[action] = due
	return min(max(due.Sub(now)-rejectedAtOnce*rejectedEvery, 0), rejectedEvery)
}

// A rejectedAction is what one series of rejections counts.
type rejectedAction struct{ action, client string }

// rejections counts the rejected actions of all clients. It is a [prometheus.Collector].
type rejections struct {
	mu     sync.Mutex
	counts map[rejectedAction]int64
	names  map[string]bool // of clients that have series of their own
}

// client returns the label of a client that calls itself by a name.
func (r *rejections) client(name string) string {
	if name == "" || len(name) > rejectedName || !isPlain(name) {
		return otherClient
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.names[name] {
		if len(r.names) >= rejectedNames {
			return otherClient
		}
		if r.names == nil {
			r.names = map[string]bool{}
		}
		r.names[name] = true
	}
	return name
}

// isPlain reports whether a name consists of letters, digits and . _ - / alone.
func isPlain(name string) bool {
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-', c == '/':
		default:
			return false
		}
	}
	return true
}

// note counts a rejection.
func (r *rejections) note(one rejectedAction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[rejectedAction]int64{}
	}
	r.counts[one]++
}

var rejectionsDesc = prometheus.NewDesc("ahp_agent_rejected_actions_total",
	"Actions of clients that were rejected, by the name that the client gives itself; other stands for unknown actions and further names.", []string{"action", "client"}, nil)

// Describe implements [prometheus.Collector].
func (r *rejections) Describe(out chan<- *prometheus.Desc) { out <- rejectionsDesc }

// Collect implements [prometheus.Collector].
func (r *rejections) Collect(out chan<- prometheus.Metric) {
	r.mu.Lock()
	counts := maps.Clone(r.counts)
	r.mu.Unlock()
	for one, n := range counts {
		out <- prometheus.MustNewConstMetric(rejectionsDesc, prometheus.CounterValue, float64(n), one.action, one.client)
	}
}

// rejected notes that an action of the client's was rejected, and waits if the client repeats it.
func (c *hostConn) rejected(env *ahp.Envelope) {
	if string(env.Method) != "dispatchAction" {
		return
	}
	action := gate.ActionLabel(string(env.Said.Type))
	c.agent.rejections.note(rejectedAction{action, c.agent.rejections.client(c.clientName)})
	wait := c.pace.wait(action, time.Now())
	if wait == 0 || c.left() != nil {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ended:
	}
}
