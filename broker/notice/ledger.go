package notice

import (
	"slices"
	"sync"

	"ahprelay/internal/signal"
)

// A Ledger lists the events a host-agent has to report. It is safe for concurrent use.
type Ledger struct {
	instance string
	only     func(session string) string // returns the only subject who may see a session, or ""; nil: all may
	wake     chan struct{}               // signals that a report is due; capacity 1
	most     int                         // bound for the events in a report

	mu     sync.Mutex // guards the fields below
	seq    uint64
	open   []Event         // oldest first
	over   []Event         // closed events that no relay has confirmed
	known  map[string]bool // open events confirmed by a relay
	inward map[string]bool // new events in the pending report
	dirty  bool            // a report is due: something has changed, or no relay has confirmed the last report
	ready  bool            // the list of open events is complete
}

// NewLedger returns an empty Ledger for a host-agent instance.
func NewLedger(instance string) *Ledger {
	return &Ledger{instance: instance, wake: make(chan struct{}, 1), most: MaxEvents, known: map[string]bool{}, dirty: true}
}

// Limit sets the function which returns the only subject who may see a session. The function must
// not use the Ledger. Call Limit before the first Add, and call [Ledger.Judge] when the function's
// results change.
func (l *Ledger) Limit(only func(session string) string) { l.only = only }

// Seal reduces the number of events in a report, because events of a sealed host are
// larger. Call it before the first report.
func (l *Ledger) Seal() { l.most = MaxSealed - 2 }

// Touch makes a report due.
func (l *Ledger) Touch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirty = true
	l.signal()
}

// Judge calls the function from Limit again for each event that is open or not confirmed. Events
// whose result has changed are reported again.
func (l *Ledger) Judge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, list := range [][]Event{l.open, l.over} {
		for i := range list {
			e := &list[i]
			was := e.Only
			if l.judgeLocked(e); e.Only != was {
				l.changedLocked(e.ID)
			}
		}
	}
}

// judgeLocked sets the only subject who may see an event. It calls the function from Limit under
// the lock, so that no event gets a result from before a concurrent Judge.
func (l *Ledger) judgeLocked(e *Event) {
	if l.only != nil && e.Session != "" && (e.Only == "" || e.Kind.Needs()) {
		e.Only = l.only(e.Session)
	}
}

// changedLocked makes the next report contain an event.
func (l *Ledger) changedLocked(id string) {
	delete(l.known, id)
	delete(l.inward, id)
	l.dirty = true
	l.signal()
}

// Add adds an event. An open event with the same ID is replaced, and reported again if
// it differs. Beyond the bounds, the oldest events are dropped.
func (l *Ledger) Add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.judgeLocked(&e)
	list := &l.over
	if e.Kind.Needs() {
		list = &l.open
	}
	if i := slices.IndexFunc(*list, func(o Event) bool { return o.ID == e.ID }); i >= 0 {
		if (*list)[i].Digest() == e.Digest() {
			return
		}
		e.At = (*list)[i].At
		(*list)[i] = e
	} else {
		if len(*list) >= MaxOpen {
			*list = slices.Delete(*list, 0, 1)
		}
		*list = append(*list, e)
	}
	l.changedLocked(e.ID)
}

// Ready marks the list of open events as complete. Before it, no report is sent.
func (l *Ledger) Ready() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready {
		l.ready = true
		l.signal()
	}
}

// Withdraw removes an open event.
func (l *Ledger) Withdraw(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.open)
	l.open = slices.DeleteFunc(l.open, func(e Event) bool { return e.ID == id })
	delete(l.known, id)
	if len(l.open) != n {
		l.dirty = true
		l.signal()
	}
}

// Open returns an open event, or false.
func (l *Ledger) Open(id string) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.open, func(e Event) bool { return e.ID == id }); i >= 0 {
		return l.open[i], true
	}
	return Event{}, false
}

// Wake returns a channel that receives a value when there may be a report to send.
func (l *Ledger) Wake() <-chan struct{} { return l.wake }

func (l *Ledger) signal() { signal.Send(l.wake) }

// Report returns the next report. It returns false if there is nothing new; with always
// set, it also repeats the list of open events.
func (l *Ledger) Report(always bool) (r Report, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready || !l.dirty && !(always && len(l.open) > 0) {
		return r, false
	}
	l.seq++
	r = Report{Instance: l.instance, Seq: l.seq, Open: make([]string, 0, len(l.open)), Events: []Event{}}
	l.inward = map[string]bool{}
	take := func(e Event) {
		if len(r.Events) < l.most {
			r.Events = append(r.Events, e)
			l.inward[e.ID] = true
		}
	}
	for _, e := range l.open {
		r.Open = append(r.Open, e.ID)
		if !l.known[e.ID] {
			take(e)
		}
	}
	for _, e := range l.over {
		take(e)
	}
	l.dirty = false
	return r, true
}

// Sent records the answer to the last report; nil means no answer.
func (l *Ledger) Sent(ack *Ack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ack == nil || ack.Seq != l.seq {
		l.dirty = true
		return
	}
	for id := range l.inward {
		if slices.ContainsFunc(l.open, func(e Event) bool { return e.ID == id }) {
			l.known[id] = true
		}
	}
	l.over = slices.DeleteFunc(l.over, func(e Event) bool { return l.inward[e.ID] })
	if ack.Again {
		for _, e := range l.open {
			if !l.inward[e.ID] {
				delete(l.known, e.ID)
			}
		}
	}
	l.inward = nil
	if len(l.over) > 0 || slices.ContainsFunc(l.open, func(e Event) bool { return !l.known[e.ID] }) {
		l.dirty = true
		l.signal()
	}
}
