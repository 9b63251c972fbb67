package notice

import (
	"encoding/json"
	"errors"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// An Answer is what a relay asks a host-agent to say to the host, for somebody. It is
// the body of a [SignedAnswer].
type Answer struct {
	Tenant string `json:"tenant"`
	Host   string `json:"host"`
	Agent  string `json:"agent"` // instance
	Relay  string `json:"relay"` // instance, where the [Answered] goes
	Nonce  string `json:"nonce"` // of this answer: one that comes again is not another

	Event  string `json:"event"`
	Digest string `json:"digest"`           // of what was shown
	Option string `json:"option,omitempty"` // one of these two
	Text   string `json:"text,omitempty"`

	// Whose answer it is, as in routing.Open.
	Subject  string   `json:"subject"`
	Token    string   `json:"token"`
	Access   string   `json:"access"`
	Channels []string `json:"channels,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Remote   string   `json:"remote,omitempty"`
}

// A SignedAnswer is an Answer with the relay's signature (auth.AnswerRequest): NATS
// servers may be somebody else's.
type SignedAnswer struct {
	Body      []byte `json:"body"`
	Key       []byte `json:"key"`
	Signature []byte `json:"signature"`
}

// A Result says what became of an answer.
type Result string

// The results.
const (
	Given     Result = "given"     // the host has it
	Answered  Result = "answered"  // somebody else was first
	Unknown   Result = "unknown"   // nobody asks that any more
	Changed   Result = "changed"   // something else is asked now
	NoAnswer  Result = "noAnswer"  // it is none, or none that may be given from afar
	Forbidden Result = "forbidden" // this person may not
	Away      Result = "away"      // the host cannot be reached; it may be tried again
)

// An Outcome is what a host-agent answers.
type Outcome struct {
	Nonce  string `json:"nonce"`
	Result Result `json:"result"`
	By     string `json:"by,omitempty"` // Answered: who was first
}

// MaxAnswer is how long a SignedAnswer may be, in bytes.
const MaxAnswer = 256 << 10

// AnswerSubject returns where a host-agent takes answers.
func AnswerSubject(tenant, host, agent string) string {
	return link.HostPrefix(tenant, host) + "ctl.answer." + agent
}

// OutcomeSubject returns where a relay hears what became of them; host may be *.
func OutcomeSubject(tenant, host, relay string) string {
	return link.HostPrefix(tenant, host) + "ctl.answered." + relay
}

// ReadAnswer decodes an Answer.
func ReadAnswer(body []byte) (a Answer, err error) {
	if json.Unmarshal(body, &a) != nil {
		return a, errors.New("answer is no JSON of the right form")
	}
	if err := ahp.CheckName("relay", a.Relay); err != nil {
		return a, err
	}
	if !isID(a.Event) || !isID(a.Nonce) {
		return a, errors.New("answer: bad event or nonce")
	}
	return a, nil
}
