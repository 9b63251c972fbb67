package routing

import (
	"encoding/json"
	"sync/atomic"

	"ahprelay/ahp"
)

// readMethods are the requests and notifications that look at a host and
// change nothing there.
var readMethods = map[string]bool{
	"initialize": true, "reconnect": true, "ping": true,
	"listSessions": true, "subscribe": true, "unsubscribe": true, "fetchTurns": true,
	"resourceRead": true, "resourceList": true, "resourceResolve": true, "canvasReadResource": true,
}

// A Verdict is what a gate says of a message from a client.
type Verdict int

// The verdicts.
const (
	Pass    Verdict = iota // it goes to the host
	Answer                 // it does not; the client gets an answer
	Replace                // the host gets another message in its place
)

// refusal is what a client with read access is told.
const refusal = "this token may look and not change anything"

// A ReadGate stands between a host and a client whose token allows only to
// read: what is not known to change nothing is refused. FromClient and
// ToClient may be called by two goroutines, one each.
type ReadGate struct {
	clientID string       // owned by FromClient's caller
	lastSeq  atomic.Int64 // of the actions that went to the client
}

// FromClient judges a message, and returns what goes to the client or the
// host instead of it.
func (g *ReadGate) FromClient(env *ahp.Envelope) (Verdict, []byte) {
	method := string(env.Method)
	switch {
	case env.Kind == ahp.Response && env.Error == nil:
		// An answer to the host may grant something.
		return Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "the client may only read", nil)
	case env.Kind == ahp.Response:
		return Pass, nil
	case readMethods[method]:
		if method == "initialize" || method == "reconnect" {
			g.learn(env.Params)
		}
		return Pass, nil
	case env.Kind == ahp.Request:
		return Answer, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, refusal, nil)
	case method == "dispatchAction":
		return Answer, g.takeBack(env)
	}
	return Answer, nil // a notification has no answer
}

func (g *ReadGate) learn(params []byte) {
	id := [...]ahp.Member{{Name: "clientId"}}
	if ahp.Members(params, id[:]) == nil {
		g.clientID, _ = ahp.Text(id[0].Raw)
	}
}

// ToClient looks at a message from the host.
func (g *ReadGate) ToClient(message []byte) {
	env, err := ahp.Peek(message)
	if err != nil || env.Kind != ahp.Notification || string(env.Method) != "action" {
		return
	}
	if p, err := ahp.ReadActionParams(env.Params); err == nil && p.ServerSeq > 0 {
		g.lastSeq.Store(p.ServerSeq)
	}
}

// takeBack is the echo with which hosts reject an action, so that a client
// that has shown its effect already takes it back.
func (g *ReadGate) takeBack(env *ahp.Envelope) []byte {
	fields := [...]ahp.Member{{Name: "action"}, {Name: "clientSeq"}}
	if ahp.Members(env.Params, fields[:]) != nil || fields[0].Raw == nil || fields[1].Raw == nil {
		return nil
	}
	type origin struct {
		ClientID  string          `json:"clientId"`
		ClientSeq json.RawMessage `json:"clientSeq"`
	}
	type params struct {
		Channel         string          `json:"channel"`
		Action          json.RawMessage `json:"action"`
		ServerSeq       int64           `json:"serverSeq"`
		Origin          origin          `json:"origin"`
		RejectionReason string          `json:"rejectionReason"`
	}
	echo, err := json.Marshal(struct {
		JSONRPC string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  params `json:"params"`
	}{"2.0", "action", params{
		string(env.Channel), fields[0].Raw, g.lastSeq.Load(), origin{g.clientID, fields[1].Raw}, refusal,
	}})
	if err != nil {
		return nil
	}
	return echo
}
