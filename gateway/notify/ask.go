package notify

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/notice"
)

// Timing of answers.
const (
	answerAgain = 2 * time.Second  // interval at which an unconfirmed answer is sent again; the host-agent applies it once
	answerTime  = 10 * time.Second // after this time, the outcome counts as unknown
)

// ErrNoOutcome reports that the host-agent has not confirmed an answer in time.
var ErrNoOutcome = errors.New("the host has not confirmed the answer")

// Answer sends a person's answer to the host-agent, and returns the outcome. The caller
// sets the person and the event in a; Answer adds host-agent, relay and nonce.
func (r *Receiver) Answer(ctx context.Context, a notice.Answer) (notice.Outcome, error) {
	host, ok := r.cfg.Registry.Lookup(a.Tenant, a.Host)
	if release, err := r.cfg.Tenants.Use(a.Tenant); err == nil {
		defer release()
		opening, cancel := context.WithTimeout(ctx, answerAgain)
		defer cancel()
		_ = r.cfg.Tenants.Await(opening, a.Tenant) // after a failure, the tenant has no connection
	}
	r.mu.Lock()
	conn := r.conns[a.Tenant]
	r.mu.Unlock()
	if !ok || host.AgentInstance == "" || conn == nil {
		return notice.Outcome{Result: notice.Away}, nil
	}
	a.Agent, a.Relay, a.Nonce = host.AgentInstance, r.cfg.Instance, strings.ToLower(rand.Text())
	body, err := json.Marshal(a)
	if err != nil {
		return notice.Outcome{}, err
	}
	message, err := json.Marshal(r.cfg.Sign(body))
	if err != nil {
		return notice.Outcome{}, err
	}
	heard := make(chan notice.Outcome, 1)
	r.mu.Lock()
	r.asked[a.Nonce] = heard
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.asked, a.Nonce)
	}()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for {
		// Publish fails while the connection is lost; the next attempt may succeed.
		_ = conn.Publish(notice.AnswerSubject(a.Tenant, a.Host, a.Agent), message)
		select {
		case out := <-heard:
			return out, nil
		case <-time.After(answerAgain):
		case <-ctx.Done():
			return notice.Outcome{}, ErrNoOutcome
		}
	}
}

// handleOutcome passes the outcome in a host-agent's message to the waiting Answer.
func (r *Receiver) handleOutcome(data []byte) {
	var out notice.Outcome
	if len(data) > maxOutcome || json.Unmarshal(data, &out) != nil {
		return
	}
	out.By = notice.Cut(out.By, notice.MaxTitle)
	r.mu.Lock()
	heard := r.asked[out.Nonce]
	r.mu.Unlock()
	if heard != nil {
		select {
		case heard <- out:
		default:
		}
	}
}

// maxOutcome is the longest message with an outcome, in bytes.
const maxOutcome = 4 << 10

func (r *Receiver) join(tenant string, conn *broker.Conn) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[tenant] = conn
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.conns[tenant] == conn {
			delete(r.conns, tenant)
		}
	}
}
