package hostagent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
	"ahprelay/routing"
)

// NotifyAnswers says what may be answered from a notification, without a page on
// which all of it is shown.
type NotifyAnswers string

// What may be.
const (
	AnswersNone NotifyAnswers = "none" // nothing
	AnswersSafe NotifyAnswers = "safe" // what [notice.Event.FromAfar] offers
	AnswersAll  NotifyAnswers = "all"  // the same: the word is known for the sake of older settings
)

// Settings of answers.
const (
	answerRoom    = 64 // answers that wait; more are dropped, and come again
	answerWorkers = 8
	answerTime    = 7 * time.Second // for the host to take one
	maxOutcomes   = 1024            // that are remembered
)

// mayAnswer leaves of an event what may be answered from afar.
func (a *Agent) mayAnswer(e *notice.Event) {
	if a.cfg.NotifyAnswers == AnswersNone {
		e.Answer, e.Options = notice.NoForm, nil
		return
	}
	e.Answer, e.Options = e.FromAfar()
}

// outcomes remember what became of answers, by their nonces.
type outcomes struct {
	mu    sync.Mutex
	of    map[string]*notice.Outcome // nil: under way
	order []string
}

// begin reports whether an answer is new, or what became of it.
func (o *outcomes) begin(nonce string) (*notice.Outcome, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if known, ok := o.of[nonce]; ok {
		return known, false
	}
	if o.of == nil {
		o.of = map[string]*notice.Outcome{}
	}
	if len(o.order) >= maxOutcomes {
		delete(o.of, o.order[0])
		o.order = o.order[1:]
	}
	o.of[nonce] = nil
	o.order = append(o.order, nonce)
	return nil, true
}

func (o *outcomes) end(out *notice.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[out.Nonce] = out
}

// takeAnswers gives the host what people answer from afar, until ctx ends.
func (a *Agent) takeAnswers(ctx context.Context, conn *broker.Conn) {
	in := make(chan *nats.Msg, answerRoom)
	cancel, err := conn.Subscribe(notice.AnswerSubject(a.tenant, a.host, a.instance), in)
	if err != nil {
		a.cfg.Log.Error("nobody can answer from a notification", "error", err)
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

// takeAnswer takes one answer, and tells the relay what became of it.
func (a *Agent) takeAnswer(ctx context.Context, conn *broker.Conn, data []byte) {
	answer, err := a.readAnswer(data)
	if err != nil {
		a.cfg.Log.Warn("an answer from a notification is not taken", "error", err)
		return
	}
	out, fresh := a.outcomes.begin(answer.Nonce)
	if fresh {
		out = a.answer(ctx, answer)
		a.outcomes.end(out)
	}
	if out == nil {
		return // it is under way: who has begun it will tell
	}
	body, err := json.Marshal(out)
	if err == nil {
		err = conn.Publish(notice.OutcomeSubject(a.tenant, a.host, answer.Relay), body)
	}
	if err != nil {
		a.cfg.Log.Warn("a relay is not told of an answer", "relay", answer.Relay, "error", err)
	}
}

// readAnswer returns an answer of a relay that the host-agent trusts.
func (a *Agent) readAnswer(data []byte) (answer notice.Answer, err error) {
	var signed notice.SignedAnswer
	if len(data) > notice.MaxAnswer || json.Unmarshal(data, &signed) != nil {
		return answer, errors.New("too long, or no JSON of the right form")
	}
	trusted, err := a.trusted()
	if err != nil {
		return answer, err
	}
	if err := auth.CheckSigned(trusted, auth.AnswerRequest, signed.Body, signed.Key, signed.Signature); err != nil {
		return answer, err
	}
	if answer, err = notice.ReadAnswer(signed.Body); err != nil {
		return answer, err
	}
	if answer.Tenant != a.tenant || answer.Host != a.host || answer.Agent != a.instance {
		return answer, errors.New("it is for another host-agent")
	}
	return answer, nil
}

// answer has the host hear what somebody answers, if they may say so.
func (a *Agent) answer(ctx context.Context, said notice.Answer) *notice.Outcome {
	out := &notice.Outcome{Nonce: said.Nonce}
	open := routing.Open{
		ID: "answer-" + said.Nonce[:min(len(said.Nonce), 12)], Subject: said.Subject, Token: said.Token, Access: said.Access,
		Channels: said.Channels, Methods: said.Methods, Remote: said.Remote,
	}
	e, known := a.ledger.Open(said.Event)
	if _, barred := a.barred.has(open); barred || known && !a.letsAnswer(open, &e) {
		out.Result = notice.Forbidden
		a.auditAnswer(open, &e, out)
		return out
	}
	answer, err := a.watch.Answer(said.Event, said.Digest, said.Subject, watch.Said{Option: said.Option, Text: said.Text})
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
		if out.Result, err = notice.Given, a.dispatch(ctx, open, answer); err != nil {
			out.Result = notice.Away
			a.cfg.Log.Warn("an answer does not reach the host", "error", err)
		}
		a.auditAnswer(open, &e, out)
	}
	return out
}

func (a *Agent) auditAnswer(open routing.Open, e *notice.Event, out *notice.Outcome) {
	a.cfg.Log.Info(auditMessage, "event", "answer", "conn", open.ID, "subject", open.Subject, "token", open.Token, "address", open.Remote,
		"session", e.Session, "kind", string(e.Kind), "result", string(out.Result))
}

// letsAnswer reports whether somebody may answer an event.
func (a *Agent) letsAnswer(open routing.Open, e *notice.Event) bool {
	policy := a.policy(open)
	needs := auth.AccessTalk
	if e.Kind == notice.Approval {
		needs = auth.AccessApprove
	}
	return policy.Access.Includes(needs) && policy.Takes(e.Session, "dispatchAction")
}

// dispatch says an answer to the host, on a connection with the authority of whose
// it is. An error says that nothing of it has left; then somebody else may answer.
func (a *Agent) dispatch(ctx context.Context, open routing.Open, answer *watch.Answer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	who := &caller{tenant: a.tenant, subject: open.Subject, access: string(a.policy(open).Access), conn: open.ID}
	sock, err := a.dialFor(ctx, who)
	if err != nil {
		answer.Undo()
		return err
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer sock.Close("answered")
	stop := context.AfterFunc(ctx, func() { sock.Close("the host takes too long") })
	defer stop()
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"protocolVersions":%s,"capabilities":{}}}`
	err = sock.Write(fmt.Appendf(nil, hello, "ahp-answer-"+strings.ToLower(rand.Text()), watch.Versions), false)
	if err == nil {
		err = greeted(sock)
	}
	if err != nil {
		answer.Undo()
		return err
	}
	chat, _ := json.Marshal(answer.Chat) // a string cannot fail
	const action = `{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":%s,"clientSeq":1,"action":%s}}`
	if err := sock.Write(fmt.Appendf(nil, action, chat, answer.Action), false); err != nil {
		return nil // nobody knows how much of it has left
	}
	reading.Go(func() { // what the host says is of no interest, but it must be able to
		for {
			if _, _, err := sock.Read(); err != nil {
				return
			}
		}
	})
	select {
	case <-answer.Settled:
	case <-ctx.Done():
	}
	return nil
}

// greeted waits for the answer to initialize.
func greeted(sock hostSocket) error {
	env, err := watch.FirstAnswer(sock)
	if err == nil && env.Error != nil {
		err = errors.New("the host refuses the connection for an answer")
	}
	return err
}
