package notice

import (
	"encoding/json"
	"errors"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// An Answer is a person's answer to a question, sent by a relay to a host-agent. It is
// the body of a [SignedAnswer].
type Answer struct {
	Tenant string `json:"tenant"`
	Host   string `json:"host"`
	Agent  string `json:"agent"` // instance
	Relay  string `json:"relay"` // instance that gets the [Outcome]
	Nonce  string `json:"nonce"` // of this answer: a repeated answer has the same nonce

	Event  string `json:"event"`
	Digest string `json:"digest"`           // of the displayed question
	Option string `json:"option,omitempty"` // exactly one of Option and Text
	Text   string `json:"text,omitempty"`

	// Letter is a device's answer to a sealed host, which relays cannot read. Event,
	// Digest, Option and Text are then empty.
	Letter []byte `json:"letter,omitempty"`

	// The person and their authority, as in routing.Open.
	Subject  string   `json:"subject"`
	Token    string   `json:"token"`
	Access   string   `json:"access"`
	Channels []string `json:"channels,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Remote   string   `json:"remote,omitempty"`
	Device   string   `json:"device,omitempty"` // the name of the person's device, for display
}

// A SignedAnswer is an Answer with the relay's signature (auth.AnswerRequest), because
// NATS servers may be external.
type SignedAnswer struct {
	Body      []byte `json:"body"`
	Key       []byte `json:"key"`
	Signature []byte `json:"signature"`
}

// A Result is the outcome of an answer.
type Result string

// The results.
const (
	Given     Result = "given"     // the host has it
	Answered  Result = "answered"  // another person answered first
	Unknown   Result = "unknown"   // the question is no longer open
	Changed   Result = "changed"   // the question has changed
	NoAnswer  Result = "noAnswer"  // invalid, or not permitted in a notification
	Forbidden Result = "forbidden" // the person may not answer
	Away      Result = "away"      // the host is unreachable; try again
)

// An Outcome is a host-agent's response to an answer.
type Outcome struct {
	Nonce  string `json:"nonce"`
	Result Result `json:"result"`
	By     string `json:"by,omitempty"`    // Answered: the person who was first
	Proof  []byte `json:"proof,omitempty"` // a sealed host's signature of Result, for a Letter
}

// MaxAnswer bounds a SignedAnswer in bytes.
const MaxAnswer = 256 << 10

// AnswerSubject returns the subject on which a host-agent receives answers.
func AnswerSubject(tenant, host, agent string) string {
	return link.HostPrefix(tenant, host) + "ctl.answer." + agent
}

// OutcomeSubject returns the subject on which a relay receives outcomes; host may be
// *.
func OutcomeSubject(tenant, host, relay string) string {
	return link.HostPrefix(tenant, host) + "ctl.answered." + relay
}

// ReadAnswer decodes an Answer.
func ReadAnswer(body []byte) (a Answer, err error) {
	if json.Unmarshal(body, &a) != nil {
		return a, errors.New("answer: invalid JSON")
	}
	if err := ahp.CheckName("relay", a.Relay); err != nil {
		return a, err
	}
	if len(a.Letter) == 0 && !isID(a.Event) || !isID(a.Nonce) {
		return a, errors.New("answer: bad event or nonce")
	}
	return a, nil
}
