package notify

import (
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
)

// Settings of a Receiver.
const (
	receiverBacklog = 1024        // reports of a tenant that are not looked at yet; more are dropped, and come again
	receiverBatch   = 256         // reports that are kept together
	receiverFlush   = time.Second // for the NATS server to stop sending reports

	// offlineAfter is how long a host must be away for that to be told: most are
	// back in no time.
	offlineAfter = 30 * time.Second
)

// ReceiverConfig says how to run a [Receiver].
type ReceiverConfig struct {
	Board    *Board             // required
	Tenants  *broker.Tenants    // required; whose host-agents report
	Registry *registry.Registry // required
	Log      *slog.Logger       // required

	Instance string                                    // required; of the relay, where host-agents tell what became of answers
	Sign     func(body []byte) (key, signature []byte) // required; signs answers for host-agents

	// Keep is called after the Board has some reports, and before they are
	// confirmed; if it fails the report is not. Default: nothing is kept.
	Keep func() error
}

// A Receiver takes the reports of host-agents, and sees which hosts are away.
type Receiver struct {
	cfg  ReceiverConfig
	stop []func()

	mu     sync.Mutex // guards the fields below
	hosts  map[hostKey]*away
	conns  map[string]*broker.Conn          // by tenant
	asked  map[string]chan<- notice.Outcome // answers of which nobody knows yet, by their nonces
	closed bool
}

// away is whether a host is there, as far as it was seen.
type away struct {
	was   bool        // it was there, at some time
	timer *time.Timer // until it is told that it is not; nil: nobody waits
	told  string      // the event that says so; "": none
}

// StartReceiver begins. Close ends it.
func StartReceiver(cfg ReceiverConfig) *Receiver {
	r := &Receiver{cfg: cfg, hosts: map[hostKey]*away{}, conns: map[string]*broker.Conn{}, asked: map[string]chan<- notice.Outcome{}}
	r.stop = append(r.stop, cfg.Registry.Subscribe(r.hostChanged), cfg.Tenants.Serve(r.serve))
	return r
}

// Close returns when nothing of the Receiver runs any more.
func (r *Receiver) Close() {
	for _, stop := range r.stop {
		stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, h := range r.hosts {
		h.wait(0, nil)
	}
}

// wait has f called in a while, in place of what was to be before; nil: nothing.
func (h *away) wait(after time.Duration, f func(*time.Timer)) {
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if f != nil {
		var timer *time.Timer
		ready := make(chan struct{})
		timer = time.AfterFunc(after, func() { <-ready; f(timer) })
		h.timer = timer
		close(ready)
	}
}

// hostChanged takes what the registry says of a host.
func (r *Receiver) hostChanged(host registry.Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := hostKey{host.Tenant, host.Name}
	h := r.hosts[key]
	if h == nil {
		h = &away{}
		r.hosts[key] = h
	}
	switch {
	case host.State == registry.Online:
		h.was = true
		h.wait(0, nil)
		if h.told != "" {
			r.cfg.Board.Remove(key.tenant, key.host, h.told)
			h.told = ""
		}
	case h.was && h.told == "" && h.timer == nil && !r.closed:
		h.wait(offlineAfter, func(timer *time.Timer) { r.tellAway(key, h, timer, host) })
	}
}

// tellAway tells that a host is still away.
func (r *Receiver) tellAway(key hostKey, h *away, timer *time.Timer, host registry.Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.timer != timer || r.closed {
		return
	}
	h.timer = nil
	h.told = notice.ID(key.host, "offline "+host.Since.UTC().Truncate(time.Minute).Format(time.RFC3339))
	e := notice.Event{ID: h.told, Kind: notice.Offline, Text: host.Reason, At: host.Since.UTC()}
	e.Fit()
	r.cfg.Board.Add(key.tenant, key.host, e, true)
}

// serve takes the reports of a tenant's host-agents, until stop.
func (r *Receiver) serve(tenant string, conn *broker.Conn) (stop func(), err error) {
	in, outcomes, quiet := make(chan *nats.Msg, receiverBacklog), make(chan *nats.Msg, receiverBacklog), make(chan struct{})
	unsubscribe, err := conn.Subscribe(notice.Subject(tenant, "*"), in)
	if err != nil {
		return nil, err
	}
	deaf, err := conn.Subscribe(notice.OutcomeSubject(tenant, "*", r.cfg.Instance), outcomes)
	if err != nil {
		unsubscribe()
		return nil, err
	}
	leave := r.join(tenant, conn)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case msg := <-in:
				r.acceptAll(tenant, conn, msg, in)
			case <-quiet:
				return
			}
		}
	})
	running.Go(func() {
		for {
			select {
			case msg := <-outcomes:
				r.handleOutcome(msg)
			case <-quiet:
				return
			}
		}
	})
	return func() {
		leave()
		deaf()
		// These fail if the connection is away, and then nothing comes in.
		unsubscribe()
		_ = conn.Flush(receiverFlush)
		close(quiet)
		running.Wait()
	}, nil
}

// receivedReport is a report that was taken, and is not confirmed.
type receivedReport struct {
	msg *nats.Msg
	ack notice.Ack
}

// acceptAll takes a report, and those that wait behind it: they are kept together.
func (r *Receiver) acceptAll(tenant string, conn *broker.Conn, msg *nats.Msg, in <-chan *nats.Msg) {
	var all []receivedReport
	for more := true; more; {
		if ack, ok := r.accept(tenant, msg); ok {
			all = append(all, receivedReport{msg, ack})
		}
		select {
		case msg = <-in:
		default:
			more = false
		}
		more = more && len(all) < receiverBatch
	}
	if len(all) == 0 {
		return
	}
	log := r.cfg.Log.With("tenant", tenant)
	if r.cfg.Keep != nil {
		if err := r.cfg.Keep(); err != nil {
			log.Error("events cannot be kept", "error", err)
			return
		}
	}
	for _, h := range all {
		body, err := json.Marshal(h.ack)
		if err == nil {
			err = conn.Publish(h.msg.Reply, body)
		}
		if err != nil {
			log.Warn("answer to a report of events", "subject", h.msg.Subject, "error", err)
		}
	}
}

// accept takes a report. One of an instance that does not serve the host is no
// concern of anybody's: if it does, and this relay has not heard of that yet, the
// report comes again.
func (r *Receiver) accept(tenant string, msg *nats.Msg) (ack notice.Ack, ok bool) {
	host := strings.Split(msg.Subject, ".")[3] // the subscription has six tokens
	log := r.cfg.Log.With("tenant", tenant, "host", host)
	// NATS lets a host-agent name any subject for the answer: see leaseDesk.
	if ahp.CheckName("host", host) != nil || !strings.HasPrefix(msg.Reply, link.HostPrefix(tenant, host)+"inbox.") {
		log.Warn("report of events with a strange subject", "reply", msg.Reply)
		return ack, false
	}
	report, err := notice.ReadReport(msg.Data)
	if err != nil {
		log.Warn("report of events", "error", err)
		return ack, false
	}
	if known, ok := r.cfg.Registry.Lookup(tenant, host); !ok || known.AgentInstance != report.Instance {
		return ack, false
	}
	return r.cfg.Board.Take(tenant, host, report), true
}
