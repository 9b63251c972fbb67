package notify

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
)

// Limits and times of a Receiver.
const (
	receiverBacklog = 1024        // queued reports per tenant; host-agents repeat dropped reports
	receiverBatch   = 256         // reports stored together
	receiverFlush   = time.Second // timeout for the NATS server to stop sending reports

	// offlineAfter is how long a host must be offline before there is an event about it.
	// Most hosts return sooner.
	offlineAfter = 30 * time.Second
)

// ReceiverConfig configures a [Receiver].
type ReceiverConfig struct {
	Board    *Board             // required
	Tenants  *broker.Tenants    // required; their host-agents send the reports
	Registry *registry.Registry // required
	Log      *slog.Logger       // required

	Instance string                        // required; names this relay, to which host-agents send outcomes
	Sign     func(body []byte) auth.Signed // required; signs answers for host-agents

	// Lacks is called for a tenant if a report names open events that the Board lacks. The
	// host-agent may not send them to this relay, because it reads only the first relay's
	// confirmation. Default: no call.
	Lacks func(tenant string)

	// Keep is called after the Board has received reports. They are confirmed only if it
	// succeeds. Default: no call.
	Keep func() error
}

// A Receiver receives reports from host-agents, and detects offline hosts.
type Receiver struct {
	cfg  ReceiverConfig
	stop []func()

	mu     sync.Mutex // guards the fields below
	hosts  map[hostKey]*away
	conns  map[string]*broker.Conn          // by tenant
	asked  map[string]chan<- notice.Outcome // pending answers, by nonce
	closed bool
}

// away tracks whether a host is offline.
type away struct {
	was   bool        // the host has been online
	timer *time.Timer // raises the event that the host is offline; nil if not running
	event string      // ID of the open event; "" for none
}

// StartReceiver starts a Receiver. The caller must Close it.
func StartReceiver(cfg ReceiverConfig) *Receiver {
	r := &Receiver{cfg: cfg, hosts: map[hostKey]*away{}, conns: map[string]*broker.Conn{}, asked: map[string]chan<- notice.Outcome{}}
	r.stop = append(r.stop, cfg.Registry.Subscribe(r.hostChanged), cfg.Tenants.Serve(r.serve))
	return r
}

// Close ends the Receiver and waits for its goroutines.
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

// wait replaces the timer by a call to f after the given time. If f is nil, it only stops
// the timer.
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

// hostChanged starts the timer of a host that has gone offline. When the host is online
// again, it withdraws the event.
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
		if h.event != "" {
			r.cfg.Board.Remove(key.tenant, key.host, h.event)
			h.event = ""
		}
	case h.was && h.event == "" && h.timer == nil && !r.closed:
		h.wait(offlineAfter, func(timer *time.Timer) { r.reportAway(key, h, timer, host) })
	}
}

// noteOnline records that the tenant's hosts have been online if they are now. The registry does
// not report those that have stayed online since before the relay's start.
func (r *Receiver) noteOnline(tenant string) {
	hosts := r.cfg.Registry.Hosts(tenant)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, host := range hosts {
		if key := (hostKey{host.Tenant, host.Name}); host.State == registry.Online && r.hosts[key] == nil {
			r.hosts[key] = &away{was: true}
		}
	}
}

// reportAway adds an event if the host is still offline, unless it has been removed.
func (r *Receiver) reportAway(key hostKey, h *away, timer *time.Timer, host registry.Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.timer != timer || r.closed {
		return
	}
	h.timer = nil
	if _, known := r.cfg.Registry.Lookup(key.tenant, key.host); !known {
		delete(r.hosts, key)
		return
	}
	h.event = notice.ID(key.host, "offline "+host.Since.UTC().Truncate(time.Minute).Format(time.RFC3339))
	e := notice.Event{ID: h.event, Kind: notice.Offline, Text: host.Reason, At: host.Since.UTC()}
	e.Fit()
	r.cfg.Board.Add(key.tenant, key.host, e, true)
}

// serve receives a tenant's reports until stop is called.
func (r *Receiver) serve(tenant string, conn *broker.Conn) (stop func(), err error) {
	in, quiet := link.NewInbox(receiverBacklog), make(chan struct{})
	unsubscribe, err := conn.Subscribe(notice.Subject(tenant, "*"), in.In)
	if err != nil {
		return nil, err
	}
	endOutcomes, err := conn.Hear(notice.OutcomeSubject(tenant, "*", r.cfg.Instance), receiverBacklog, r.handleOutcome)
	if err != nil {
		unsubscribe()
		return nil, err
	}
	leave := r.join(tenant, conn)
	r.noteOnline(tenant)
	var running sync.WaitGroup
	life, end := context.WithCancel(context.Background())
	running.Go(func() { in.Run(life) })
	running.Go(func() {
		for {
			select {
			case <-in.Ready:
				r.acceptAll(tenant, conn, in)
			case <-quiet:
				return
			}
		}
	})
	return func() {
		leave()
		endOutcomes()
		// While the connection to NATS is lost, these calls fail, but no report can
		// arrive either.
		unsubscribe()
		_ = conn.Flush(receiverFlush)
		close(quiet)
		end()
		running.Wait()
	}, nil
}

// A receivedReport is on the Board but not confirmed yet.
type receivedReport struct {
	msg *nats.Msg
	ack notice.Ack
}

// acceptAll receives all queued reports, so that they are stored together.
func (r *Receiver) acceptAll(tenant string, conn *broker.Conn, in *link.Inbox) {
	var all []receivedReport
	for len(all) < receiverBatch {
		msg := in.Next()
		if msg == nil {
			break
		}
		if ack, ok := r.accept(tenant, msg); ok {
			all = append(all, receivedReport{msg, ack})
		}
	}
	if len(all) == 0 {
		return
	}
	log := r.cfg.Log.With("tenant", tenant)
	if r.cfg.Keep != nil {
		if err := r.cfg.Keep(); err != nil {
			log.Error("event report not stored", "error", err)
			return
		}
	}
	for _, h := range all {
		body, err := json.Marshal(h.ack)
		if err == nil {
			err = conn.Publish(h.msg.Reply, body)
		}
		if err != nil {
			log.Warn("event report not confirmed", "subject", h.msg.Subject, "error", err)
		}
	}
}

// accept puts a report on the Board. It ignores reports from an instance that does not
// serve the host; if only the registry is late, the host-agent repeats the report.
func (r *Receiver) accept(tenant string, msg *nats.Msg) (ack notice.Ack, ok bool) {
	host := strings.Split(msg.Subject, ".")[3] // the subscription has six tokens
	log := r.cfg.Log.With("tenant", tenant, "host", host)
	// A host-agent could name any subject for the reply, so the subject is checked, as in
	// package registry's lease server.
	if ahp.CheckName("host", host) != nil || !strings.HasPrefix(msg.Reply, link.HostPrefix(tenant, host)+"inbox.") {
		log.Warn("event report with an invalid reply subject", "reply", msg.Reply)
		return ack, false
	}
	report, err := notice.ReadReport(msg.Data)
	if err != nil {
		log.Warn("event report unreadable", "error", err)
		return ack, false
	}
	if known, ok := r.cfg.Registry.Lookup(tenant, host); !ok || known.AgentInstance != report.Instance {
		return ack, false
	}
	ack = r.cfg.Board.Take(tenant, host, report)
	if ack.Again && r.cfg.Lacks != nil {
		r.cfg.Lacks(tenant)
	}
	return ack, true
}
