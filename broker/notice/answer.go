package notice

import (
	"encoding/json"
	"errors"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// An Answer is a person's answer to an agent's question. A relay sends it to the
// host-agent, as the body of an auth.Signed (auth.AnswerRequest).
type Answer struct {
	Tenant string `json:"tenant"`
	Host   string `json:"host"`
	Agent  string `json:"agent"` // instance of the host-agent
	Relay  string `json:"relay"` // instance of the relay, which gets the [Outcome]
	Nonce  string `json:"nonce"` // identifies this answer; a repeated answer has the same nonce

	Event  string `json:"event"`
	Digest string `json:"digest"`           // digest of the question as it was displayed
	Option string `json:"option,omitempty"` // set either Option or Text
	Text   string `json:"text,omitempty"`

	// Letter is an answer for a sealed host, from a person's device; relays cannot
	// read it. Event, Digest, Option and Text are then empty.
	Letter []byte `json:"letter,omitempty"`

	// The person's identity and permissions, as in routing.Open.
	Subject  string   `json:"subject"`
	Token    string   `json:"token"`
	Access   string   `json:"access"`
	Channels []string `json:"channels,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Remote   string   `json:"remote,omitempty"`
	Device   string   `json:"device,omitempty"` // the name of the person's device, for display
}

// A Result is what has become of an answer.
type Result string

const (
	Given     Result = "given"     // the host has received it
	Answered  Result = "answered"  // another person answered first
	Unknown   Result = "unknown"   // the question is no longer open
	Changed   Result = "changed"   // the question has changed
	NoAnswer  Result = "noAnswer"  // invalid, or not permitted from a notification
	Forbidden Result = "forbidden" // the person may not answer
	Away      Result = "away"      // the host is unreachable; try again
)

// An Outcome is a host-agent's reply to an Answer.
type Outcome struct {
	Nonce  string `json:"nonce"`
	Result Result `json:"result"`
	By     string `json:"by,omitempty"`    // Answered: the person who answered first
	Proof  []byte `json:"proof,omitempty"` // signature of Result by a sealed host, for a Letter
}

// MaxAnswer bounds a signed Answer in bytes.
const MaxAnswer = 256 << 10

// AnswerSubject returns the subject on which a host-agent receives answers.
func AnswerSubject(tenant, host, agent string) string {
	return link.HostPrefix(tenant, host) + "ctl.answer." + agent
}

// OutcomeSubject returns the subject on which a relay receives outcomes. Host may be
// *, for all hosts.
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
