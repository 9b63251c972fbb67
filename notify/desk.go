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
	"ahprelay/link"
	"ahprelay/notice"
	"ahprelay/registry"
)

// Settings of a Desk.
const (
	deskRoom   = 1024        // reports of a tenant that are not looked at yet; more are dropped, and come again
	deskAtOnce = 256         // reports that are kept together
	deskFlush  = time.Second // for the NATS server to stop sending reports

	// offlineAfter is how long a host must be away for that to be told: most are
	// back in no time.
	offlineAfter = 30 * time.Second
)

// DeskConfig says how to run a [Desk].
type DeskConfig struct {
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

// A Desk takes the reports of host-agents, and sees which hosts are away.
type Desk struct {
	cfg  DeskConfig
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

// StartDesk begins. Close ends it.
func StartDesk(cfg DeskConfig) *Desk {
	d := &Desk{cfg: cfg, hosts: map[hostKey]*away{}, conns: map[string]*broker.Conn{}, asked: map[string]chan<- notice.Outcome{}}
	d.stop = append(d.stop, cfg.Registry.Subscribe(d.hostChanged), cfg.Tenants.Serve(d.serve))
	return d
}

// Close returns when nothing of the Desk runs any more.
func (d *Desk) Close() {
	for _, stop := range d.stop {
		stop()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, h := range d.hosts {
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
func (d *Desk) hostChanged(host registry.Host) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := hostKey{host.Tenant, host.Name}
	h := d.hosts[key]
	if h == nil {
		h = &away{}
		d.hosts[key] = h
	}
	switch {
	case host.State == registry.Online:
		h.was = true
		h.wait(0, nil)
		if h.told != "" {
			d.cfg.Board.Remove(key.tenant, key.host, h.told)
			h.told = ""
		}
	case h.was && h.told == "" && h.timer == nil && !d.closed:
		h.wait(offlineAfter, func(timer *time.Timer) { d.tellAway(key, h, timer, host) })
	}
}

// tellAway tells that a host is still away.
func (d *Desk) tellAway(key hostKey, h *away, timer *time.Timer, host registry.Host) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h.timer != timer || d.closed {
		return
	}
	h.timer = nil
	h.told = notice.ID(key.host, "offline "+host.Since.UTC().Truncate(time.Minute).Format(time.RFC3339))
	e := notice.Event{ID: h.told, Kind: notice.Offline, Text: host.Reason, At: host.Since.UTC()}
	e.Fit()
	d.cfg.Board.Add(key.tenant, key.host, e, true)
}

// serve takes the reports of a tenant's host-agents, until stop.
func (d *Desk) serve(tenant string, conn *broker.Conn) (stop func(), err error) {
	in, outcomes, quiet := make(chan *nats.Msg, deskRoom), make(chan *nats.Msg, deskRoom), make(chan struct{})
	unsubscribe, err := conn.Subscribe(notice.Subject(tenant, "*"), in)
	if err != nil {
		return nil, err
	}
	deaf, err := conn.Subscribe(notice.OutcomeSubject(tenant, "*", d.cfg.Instance), outcomes)
	if err != nil {
		unsubscribe()
		return nil, err
	}
	leave := d.join(tenant, conn)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case msg := <-in:
				d.takeAll(tenant, conn, msg, in)
			case <-quiet:
				return
			}
		}
	})
	running.Go(func() {
		for {
			select {
			case msg := <-outcomes:
				d.hear(msg)
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
		_ = conn.Flush(deskFlush)
		close(quiet)
		running.Wait()
	}, nil
}

// heard is a report that was taken, and is not confirmed.
type heard struct {
	msg *nats.Msg
	ack notice.Ack
}

// takeAll takes a report, and those that wait behind it: they are kept together.
func (d *Desk) takeAll(tenant string, conn *broker.Conn, msg *nats.Msg, in <-chan *nats.Msg) {
	var all []heard
	for more := true; more; {
		if ack, ok := d.take(tenant, msg); ok {
			all = append(all, heard{msg, ack})
		}
		select {
		case msg = <-in:
		default:
			more = false
		}
		more = more && len(all) < deskAtOnce
	}
	if len(all) == 0 {
		return
	}
	log := d.cfg.Log.With("tenant", tenant)
	if d.cfg.Keep != nil {
		if err := d.cfg.Keep(); err != nil {
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

// take takes a report. One of an instance that does not serve the host is no
// concern of anybody's: if it does, and this relay has not heard of that yet, the
// report comes again.
func (d *Desk) take(tenant string, msg *nats.Msg) (ack notice.Ack, ok bool) {
	host := strings.Split(msg.Subject, ".")[3] // the subscription has six tokens
	log := d.cfg.Log.With("tenant", tenant, "host", host)
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
	if known, ok := d.cfg.Registry.Lookup(tenant, host); !ok || known.AgentInstance != report.Instance {
		return ack, false
	}
	return d.cfg.Board.Take(tenant, host, report), true
}
