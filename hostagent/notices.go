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

// A Notify says of what people are told while they look at nothing.
type Notify string

// What they are told of.
const (
	NotifyOff   Notify = "off"   // nothing; the host has no connection more
	NotifyNeeds Notify = "needs" // that somebody is needed
	NotifyAll   Notify = "all"   // and that an agent is done, or has failed
)

// Times of reports.
const (
	// noticeEvery is how often relays are told of open events that they know, in
	// case that one does not.
	noticeEvery = 20 * time.Second

	// noticeTimeout is how long a relay has to confirm a report.
	noticeTimeout = 2 * time.Second
)

// notices has the host watched, and tells relays what is to be told, until ctx
// ends. A command is a process for each connection: there is nothing to be seen on
// one of its own.
func (a *Agent) notices(ctx context.Context, conn *broker.Conn) {
	var watching sync.WaitGroup
	watching.Go(func() { a.watch.Run(ctx) })
	watching.Go(func() { a.takeAnswers(ctx, conn) })
	a.report(ctx, conn)
	watching.Wait()
}

// newWatch returns what watches the host, nil for nothing.
func (a *Agent) newWatch() *watch.Watch {
	if a.cfg.Notify == "" || a.cfg.Notify == NotifyOff || len(a.cfg.Upstream.Command) > 0 {
		return nil
	}
	return watch.New(watch.Config{
		Ledger: a.ledger, Log: a.cfg.Log, Moments: a.cfg.Notify == NotifyAll, Tells: a.tells, Answers: a.mayAnswer,
		Dial: func(ctx context.Context) (watch.Socket, error) {
			ctx, cancel := context.WithTimeout(ctx, openTime)
			defer cancel()
			return a.dialForMonitor(ctx, nil)
		},
	})
}

// tells reports whether the host's owner lets anybody see a session.
func (a *Agent) tells(session string) bool {
	return a.cfg.Allow == nil || a.cfg.Allow.Takes(session, "listSessions")
}

// report sends reports until ctx ends.
func (a *Agent) report(ctx context.Context, conn *broker.Conn) {
	every := time.NewTicker(noticeEvery)
	defer every.Stop()
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
			wake = nil // what has come meanwhile goes with it
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-login: // maybe at another relay, which knows nothing
			login, always = conn.NextLogin(), true
		case <-wake:
		case <-every.C:
			always = true
		}
	}
}

// sendReport returns what a relay has answered, nil for nothing.
func (a *Agent) sendReport(ctx context.Context, conn *broker.Conn, report notice.Report) *notice.Ack {
	data, err := json.Marshal(report)
	if err != nil {
		return nil // no field can fail
	}
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	answer, err := conn.Request(ctx, notice.Subject(a.tenant, a.host), data)
	var ack notice.Ack
	if err == nil {
		err = json.Unmarshal(answer, &ack)
	}
	if err != nil {
		a.cfg.Log.Debug("relays do not confirm a report of events", "error", err)
		return nil
	}
	return &ack
}
