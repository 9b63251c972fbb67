package gate

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

// refusal is what a client with read access is told.
const refusal = "this token may look and not change anything"

// A Read is the gate of a client whose token allows only to read: what is not
// known to change nothing is refused.
type Read struct {
	clientID string       // owned by FromClient's caller
	lastSeq  atomic.Int64 // of the actions that went to the client
}

// FromClient implements [Gate].
func (g *Read) FromClient(_ []byte, env *ahp.Envelope) Decision {
	method := string(env.Method)
	switch {
	case env.Kind == ahp.Response && env.Error == nil:
		// An answer to the host may grant something.
		return Decision{Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "the client may only read", nil)}
	case env.Kind == ahp.Response:
		return Decision{}
	case readMethods[method]:
		if method == "initialize" || method == "reconnect" {
			g.learn(env.Params)
		}
		return Decision{}
	case env.Kind == ahp.Request:
		return Decision{Answer, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, refusal, nil)}
	case method == "dispatchAction":
		return Decision{Answer, g.takeBack(env)}
	}
	return Decision{Verdict: Answer} // a notification has no answer
}

func (g *Read) learn(params []byte) {
	id := [...]ahp.Member{{Name: "clientId"}}
	if ahp.Members(params, id[:]) == nil {
		g.clientID, _ = ahp.Text(id[0].Raw)
	}
}

// FromHost implements [Gate].
func (g *Read) FromHost(_ []byte, env *ahp.Envelope) Decision {
	if env == nil || env.Kind != ahp.Notification || string(env.Method) != "action" {
		return Decision{}
	}
	if p, err := ahp.ReadActionParams(env.Params); err == nil && p.ServerSeq > 0 {
		g.lastSeq.Store(p.ServerSeq)
	}
	return Decision{}
}

// takeBack is the echo with which hosts reject an action, so that a client
// that has shown its effect already takes it back.
func (g *Read) takeBack(env *ahp.Envelope) []byte {
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
