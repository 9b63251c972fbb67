package hostagent

import (
	"encoding/json"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
)

// Answers that people have given. A host's state shows that a tool call was allowed, but does not
// name the person. The host-agent knows the person behind each connection, and answers this request
// for a chat in reach to which the client is subscribed. The host never receives the request.
//
//	→ {"id":1,"method":"relay/answers","params":{"channel":"ahp-chat:/1"}}
//	← {"id":1,"result":{"answers":[{"type":"chat/toolCallConfirmed","id":"call-1","subject":"ada","device":"phone","at":"…"}]}}

// answersMethod is the request that the host-agent answers.
const answersMethod = "relay/answers"

// Bounds of the remembered answers.
const (
	maxGiven   = 4096
	maxGivenID = 512 // longest id or channel, in bytes
)

// A giver is the person who answers, and the name of the device.
type giver struct {
	Subject string `json:"subject"`
	Device  string `json:"device,omitempty"`
}

// A givenAnswer is an answer that the host has accepted.
type givenAnswer struct {
	Type string `json:"type"` // type of the answering action
	ID   string `json:"id"`   // id of the tool call or the request
	giver
	At time.Time `json:"at"`
}

// A givenKey identifies a question.
type givenKey struct{ channel, kind, id string }

// givenAnswers remembers who answered each question. If several people answered, the first answer
// in the host's order counts. The answers are kept in memory only.
type givenAnswers struct {
	mu    sync.Mutex // guards the fields below
	of    map[givenKey]givenEntry
	order []givenKey
}

type givenEntry struct {
	by  giver
	seq int64 // the host's serverSeq
	at  time.Time
}

// note records an answer, unless an answer to the question with the same or a lower seq is known.
func (g *givenAnswers) note(key givenKey, by giver, seq int64) {
	if key.id == "" || len(key.id) > maxGivenID || len(key.channel) > maxGivenID {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	had, again := g.of[key]
	if again && had.seq <= seq {
		return
	}
	if g.of == nil {
		g.of = map[givenKey]givenEntry{}
	}
	if !again {
		if len(g.order) == maxGiven {
			delete(g.of, g.order[0])
			g.order = g.order[1:]
		}
		g.order = append(g.order, key)
	}
	g.of[key] = givenEntry{by, seq, time.Now().UTC()}
}

// on returns a chat's answers, the oldest first.
func (g *givenAnswers) on(channel string) []givenAnswer {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := []givenAnswer{}
	for _, key := range g.order {
		if key.channel == channel {
			entry := g.of[key]
			list = append(list, givenAnswer{key.kind, key.id, entry.by, entry.at})
		}
	}
	return list
}

// A givenGate records the answers that one connection's client gives, and answers the client's
// relay/answers requests.
type givenGate struct {
	view   *view.Conn
	policy gate.Policy
	given  *givenAnswers
	by     giver
}

func (g givenGate) FromClient(_ []byte, env *ahp.Envelope) gate.Decision {
	if string(env.Method) != answersMethod {
		return gate.Decision{}
	}
	channel := string(env.Channel)
	switch {
	case env.Kind != ahp.Request:
		return gate.Decision{Verdict: gate.Answer}
	case !g.view.Subscribed(channel) || !g.policy.Reaches(channel, g.view.Host()): // a chat may leave the reach, and its subscription lasts
		return gate.Decision{Verdict: gate.Answer, Message: ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "subscribe to this chat first", nil)}
	}
	result, err := json.Marshal(map[string]any{"answers": g.given.on(channel)})
	if err != nil {
		result = nil
	}
	return gate.Decision{Verdict: gate.Serve, Message: ahp.AppendResult(nil, env.ID, result)}
}

// FromHost implements [gate.Gate]. The host's echo of the client's own action shows that
// the host has accepted the action.
func (g givenGate) FromHost(_ []byte, env *ahp.Envelope, _ *view.Reading) gate.Decision {
	if env == nil || env.Said.Origin == nil {
		return gate.Decision{}
	}
	switch string(env.Said.Type) { // string(…) in a switch makes no copy: most actions are of other types
	case "chat/toolCallConfirmed", "chat/toolCallResultConfirmed", "chat/inputCompleted":
		if ahp.TextOf(env.Said.Origin, "clientId") != g.view.ClientID() {
			break
		}
		if !ahp.IsNone(ahp.RawOf(env.Params, "rejectionReason")) {
			break
		}
		seq, err := env.Said.Seq()
		if err != nil {
			break
		}
		_, id := answerOf(env.Said.Action)
		g.given.note(givenKey{string(env.Channel), string(env.Said.Type), id}, g.by, seq)
	}
	return gate.Decision{}
}
