package hostagent

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
)

// A Notify selects the events for notifications.
type Notify string

const (
	NotifyOff   Notify = "off"   // no events
	NotifyNeeds Notify = "needs" // events that need a person
	NotifyAll   Notify = "all"   // also events of agents that finished or failed
)

const (
	// noticeEvery is the interval in which open events are reported again, in case a relay
	// has lost them.
	noticeEvery = 20 * time.Second

	// noticeTimeout is how long a relay may take to confirm a report.
	noticeTimeout = 2 * time.Second
)

// notices exchanges with relays, until ctx ends: events and answers to them, last states of
// sessions, waiting items, orders to wake machines, and revocations of kept connections.
func (a *Agent) notices(ctx context.Context, conn *broker.Conn) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { a.last.run(ctx, conn) })
	watching.Go(func() { a.waiting.run(ctx, conn) })
	watching.Go(func() { newWaker(a).run(ctx, conn) })
	watching.Go(func() { a.moves.endRevoked(ctx, a.instance, keeperAt(a, conn)) })
	if a.watch == nil {
		return
	}
	watching.Go(func() { a.watch.Run(ctx) })
	if a.cfg.notifies() {
		watching.Go(func() { a.takeAnswers(ctx, conn) })
		a.report(ctx, conn)
	}
}

func (c *Config) notifies() bool { return c.Notify != "" && c.Notify != NotifyOff }

// newWatch returns the watch of the host, or nil if neither notifications nor last states
// are configured. A command is not watched: each connection starts a new process, so the
// watch would see no session.
func (a *Agent) newWatch() *watch.Watch {
	if !a.cfg.notifies() && a.last.keeper == nil || len(a.cfg.Upstream.Command) > 0 {
		return nil
	}
	cfg := watch.Config{
		Ledger: a.ledger, Log: a.cfg.Log, Moments: a.cfg.Notify == NotifyAll, Tells: a.cfg.tells, Answers: a.cfg.mayAnswer, Working: a.awake.Sessions,
		Dial: a.last.dial,
	}
	if a.last.keeper != nil {
		cfg.Summary, cfg.Listed = a.last.keeper.Summary, a.last.keeper.Listed
	}
	return watch.New(cfg)
}

// tells reports whether the host's owner permits clients to see a session.
func (cfg *Config) tells(session string) bool {
	return cfg.Allow == nil || cfg.Allow.Takes(session, "listSessions")
}

func (a *Agent) report(ctx context.Context, conn *broker.Conn) {
	every := time.Tick(noticeEvery)
	login := conn.NextLogin()
	for failures, always := 0, false; ; {
		var again <-chan time.Time
		if report, ok := a.ledger.Report(always); ok {
			ack := a.sendReport(ctx, conn, report)
			a.ledger.Sent(ack)
			if failures++; ack != nil {
				failures = 0
			} else {
				again = time.After(broker.RetryDelay(failures))
			}
		}
		always = false
		wake := a.ledger.Wake()
		if again != nil {
			wake = nil // more events may arrive before the report is sent
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-login: // the new relay may not have any events
			login, always = conn.NextLogin(), true
		case <-wake:
		case <-every:
			always = true
		}
	}
}

// sendReport sends a report, and returns a relay's confirmation or nil. For a sealed host,
// relays cannot read the report's contents.
func (a *Agent) sendReport(ctx context.Context, conn *broker.Conn, report notice.Report) *notice.Ack {
	if a.seals == nil {
		return requestReport(ctx, conn, a, report)
	}
	report, ends, err := a.seals.report(report)
	if err != nil {
		a.cfg.Log.Error("events of a sealed host not reported", "error", err)
		return nil
	}
	ack := requestReport(ctx, conn, a, report)
	if ack != nil && a.seals.reported(ends) {
		a.ledger.Touch()
	}
	return ack
}

func requestReport(ctx context.Context, conn *broker.Conn, a *Agent, report notice.Report) *notice.Ack {
	data, err := json.Marshal(report)
	if err != nil {
		return nil // all fields can be encoded
	}
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	answer, err := conn.Request(ctx, notice.Subject(a.tenant, a.host), data)
	var ack notice.Ack
	if err == nil {
		err = json.Unmarshal(answer, &ack)
	}
	if err != nil {
		a.cfg.Log.Debug("event report not confirmed by relays", "error", err)
		return nil
	}
	return &ack
}
