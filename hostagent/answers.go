package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
	"ahprelay/routing"
)

// NotifyAnswers selects the answers that people may give from a notification. A notification does
// not show a question's whole context.
type NotifyAnswers string

// Values of NotifyAnswers.
const (
	AnswersNone NotifyAnswers = "none" // notifications offer no answers
	AnswersSafe NotifyAnswers = "safe" // notifications offer the answers in [notice.Event.FromAfar]
	AnswersAll  NotifyAnswers = "all"  // same as AnswersSafe; kept for older settings
)

// Bounds of answers.
const (
	answerRoom    = 64 // most queued answers; a further answer is dropped, and the relay sends it again
	answerWorkers = 8
	answerTime    = 7 * time.Second // the host has this long to accept an answer
	maxOutcomes   = 1024            // most remembered outcomes
)

// mayAnswer removes from an event the answers forbidden by this host's settings.
func (cfg *Config) mayAnswer(e *notice.Event) {
	if cfg.NotifyAnswers == AnswersNone {
		e.Answer, e.Options = notice.NoForm, nil
		return
	}
	e.Answer, e.Options = e.FromAfar()
}

// outcomes remembers the outcome of each answer by its nonce.
type outcomes struct {
	mu sync.Mutex
	of *simplelru.LRU[string, *notice.Outcome] // an outcome is nil while the answer is in progress
}

// begin reports whether a nonce is new. For a known nonce, it returns the outcome so far.
func (o *outcomes) begin(nonce string) (*notice.Outcome, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of, _ = simplelru.NewLRU[string, *notice.Outcome](maxOutcomes, nil) // fails only without a limit
	}
	if known, ok := o.of.Peek(nonce); ok {
		return known, false
	}
	o.of.Add(nonce, nil)
	return nil, true
}

// end stores the outcome, unless begin has removed its nonce for lack of room.
func (o *outcomes) end(out *notice.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of.Contains(out.Nonce) {
		o.of.Add(out.Nonce, out)
	}
}

// forget removes a nonce, so begin accepts it again.
func (o *outcomes) forget(nonce string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of.Remove(nonce)
}

// takeAnswers delivers answers from notifications to the host until ctx ends.
func (a *Agent) takeAnswers(ctx context.Context, conn *broker.Conn) {
	in := make(chan *nats.Msg, answerRoom)
	cancel, err := conn.Subscribe(notice.AnswerSubject(a.tenant, a.host, a.instance), in)
	if err != nil {
		a.cfg.Log.Error("answers from notifications unavailable", "error", err)
		return
	}
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	for range answerWorkers {
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case msg := <-in:
					a.takeAnswer(ctx, conn, msg.Data)
				}
			}
		})
	}
}

func (a *Agent) takeAnswer(ctx context.Context, conn *broker.Conn, data []byte) {
	answer, err := a.readAnswer(data)
	if err != nil {
		a.cfg.Log.Warn("answer from a notification refused", "error", err)
		return
	}
	out, fresh := a.outcomes.begin(answer.Nonce)
	if fresh {
		if a.seals != nil {
			out = a.seals.answer(ctx, answer)
		} else {
			out = a.answer(ctx, answer)
		}
		a.outcomes.end(out)
	}
	if out == nil {
		return // in progress: the first call reports the outcome
	}
	body, err := json.Marshal(out)
	if err == nil {
		err = conn.Publish(notice.OutcomeSubject(a.tenant, a.host, answer.Relay), body)
	}
	if err != nil {
		a.cfg.Log.Warn("outcome of an answer not sent to the relay", "relay", answer.Relay, "error", err)
	}
}

// readAnswer verifies that a trusted relay has signed the answer for this host-agent, and decodes
// the answer.
func (a *Agent) readAnswer(data []byte) (answer notice.Answer, err error) {
	var signed auth.Signed
	if len(data) > notice.MaxAnswer || json.Unmarshal(data, &signed) != nil {
		return answer, errors.New("malformed or too long")
	}
	if err := a.verify(&signed, auth.AnswerRequest); err != nil {
		return answer, err
	}
	if answer, err = notice.ReadAnswer(signed.Body); err != nil {
		return answer, err
	}
	if answer.Tenant != a.tenant || answer.Host != a.host || answer.Agent != a.instance {
		return answer, errors.New("addressed to a different host-agent")
	}
	return answer, nil
}

// answer delivers an answer to the host if its sender is permitted to give it.
func (a *Agent) answer(ctx context.Context, given notice.Answer) *notice.Outcome {
	out := &notice.Outcome{Nonce: given.Nonce}
	open := routing.Open{
		ID: "answer-" + given.Nonce[:min(len(given.Nonce), 12)], Subject: given.Subject, Token: given.Token, Access: given.Access,
		Channels: given.Channels, Methods: given.Methods, Remote: given.Remote,
	}
	e, known := a.ledger.Open(given.Event)
	if _, blocked := a.blocked.has(open); blocked || known && !letsAnswer(a.policy(open), &e) {
		out.Result = notice.Forbidden
		auditAnswer(a.cfg.Log, open, &e, out)
		return out
	}
	e.ID = given.Event
	give(ctx, a, out, open, given.Device, &e, given.Digest, watch.Reply{Option: given.Option, Text: given.Text})
	return out
}

// give delivers a person's answer to an event, and fills in the outcome. device is the name
// of the person's device.
func give(ctx context.Context, a *Agent, out *notice.Outcome, open routing.Open, device string, e *notice.Event, digest string, said watch.Reply) {
	answer, err := a.watch.Answer(e.ID, digest, open.Subject, said)
	var first *watch.AnsweredError
	switch {
	case errors.As(err, &first):
		out.Result, out.By = notice.Answered, first.By
	case errors.Is(err, watch.ErrUnknown):
		out.Result = notice.Unknown
	case errors.Is(err, watch.ErrChanged):
		out.Result = notice.Changed
	case err != nil:
		out.Result = notice.NoAnswer
	default:
		if out.Result, err = a.dispatch(ctx, open, answer); err != nil {
			a.cfg.Log.Warn("answer not delivered to the host", "error", err)
		}
		if out.Result == notice.Given {
			kind, id := answerOf(answer.Action)
			a.given.note(givenKey{answer.Chat, kind, id}, giver{open.Subject, device}, 0)
		}
		auditAnswer(a.cfg.Log, open, e, out)
	}
}

func auditAnswer(log *slog.Logger, open routing.Open, e *notice.Event, out *notice.Outcome) {
	log.Info(auditMessage, "event", "answer", "conn", open.ID, "subject", open.Subject, "token", open.Token, "address", open.Remote,
		"session", e.Session, "kind", string(e.Kind), "result", string(out.Result))
}

// letsAnswer reports whether a client with this authority may answer an event.
func letsAnswer(policy gate.Policy, e *notice.Event) bool {
	needs := auth.AccessTalk
	if e.Kind == notice.Approval {
		needs = auth.AccessApprove
	}
	return policy.Access.Includes(needs) && policy.Takes(e.Session, "dispatchAction")
}

// dispatch sends an answer to the host, on a new connection with the authority of the person who
// answered. If the host does not accept the answer, the question is open to other answers again.
// After an error, no byte of the answer was sent.
func (a *Agent) dispatch(ctx context.Context, open routing.Open, answer *watch.Answer) (result notice.Result, err error) {
	defer func() {
		if result != notice.Given {
			answer.Undo()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	who := &caller{tenant: a.tenant, subject: open.Subject, access: string(a.policy(open).Access), conn: open.ID}
	sock, err := a.dialFor(ctx, who)
	if err != nil {
		return notice.Away, err
	}
	defer sock.Close("answered")
	stop := context.AfterFunc(ctx, func() { sock.Close("host timeout") })
	defer stop()
	return newAnswering(sock, answer).run()
}
