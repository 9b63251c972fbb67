package hostagent

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
)

// Some clients repeat a rejected action at once and forever, because each rejection
// changes the state that triggers the action. The host-agent counts rejections by action
// and client, and reads the next message of a client that repeats an action only after a
// delay.

// Bounds of rejected actions.
const (
	rejectedAtOnce = 64          // per action and connection, without a delay; when a VS Code window connects, it sends about 40
	rejectedEvery  = time.Second // after rejectedAtOnce, the client gets a rejection per interval
	rejectedNames  = 16          // most client names with their own series
	rejectedName   = 32          // longest client name with its own series, in bytes
)

// otherClient is the label of clients without their own series.
const otherClient = "other"

// A pace delays a client that repeats rejected actions. Its methods must not be called
// concurrently.
type pace struct {
	due map[string]time.Time // for each action, when its rejections so far would end if one took rejectedEvery
}

// wait counts a rejection of an action, and returns how long to delay the client's next
// message. The first rejectedAtOnce rejections cause no delay; each later one causes at
// most rejectedEvery.
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

// rejections counts the rejected actions of all clients.
type rejections struct {
	counts *prometheus.CounterVec // by action and client

	mu    sync.Mutex
	names map[string]bool // client names with their own series
}

func newRejections() *rejections {
	return &rejections{names: map[string]bool{}, counts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ahp_agent_rejected_actions_total", Help: "Rejected client actions by client name; other covers unknown actions and further names.",
	}, []string{"action", "client"})}
}

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
		r.names[name] = true
	}
	return name
}

// isPlain reports whether a name consists only of letters, digits and . _ - /.
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

// rejected counts a rejected action of the client, and delays a client that repeats the
// action.
func (w *hostWriter) rejected(env *ahp.Envelope) {
	if string(env.Method) != "dispatchAction" {
		return
	}
	action := gate.ActionLabel(string(env.Said.Type))
	rejections := w.c.agent.rejections
	rejections.counts.WithLabelValues(action, rejections.client(w.clientName)).Inc()
	wait := w.pace.wait(action, time.Now())
	if wait == 0 || w.left() != nil {
		return
	}
	select {
	case <-time.After(wait):
	case <-w.c.ended:
	}
}
