package gate

import (
	"bytes"
	"encoding/json"
	"slices"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A client that writes to a session sends session/activeClientSet, and offers its own
// tools and customizations with it. VS Code's window waits until the session's state
// has the very entry it sent, and repeats the action whenever the state has a
// different entry. If the relay rejected the action or changed the entry, VS Code
// would repeat the action forever.
//
// Tools and customizations reach the agent, with descriptions it obeys and plugins the
// host runs. A client below the level operate therefore enters the session without
// them: the host gets the entry with an empty list of tools, and echoes that to all
// clients. In the echo to this client, its own entry stands as it was sent. All else
// in the echo, including its serverSeq, is the host's. An entry that may not pass is
// settled ([TakeBack]).

// activeClientSet is the action's type.
const activeClientSet = "session/activeClientSet"

// Bounds for the entries of a connection that the host has not echoed yet.
const (
	maxClaims     = 16
	maxClaimBytes = 64 << 10 // of an entry
)

// A claim is an entry that went to the host without its tools.
type claim struct {
	channel string
	seq     string // clientSeq, as the client wrote it
	entry   []byte // as the client wrote it
}

// An activeClient is an entry as the host gets it.
type activeClient struct {
	ClientID    string   `json:"clientId"`
	DisplayName string   `json:"displayName,omitempty"`
	Tools       []string `json:"tools"` // always empty, and required
}

// judgeActiveClient returns why a client below operate may not enter a session with
// this entry.
func (a *Authority) judgeActiveClient(entry []byte) *refusal {
	switch {
	case !isEntryOf(entry, a.view.ClientID()):
		return no("an active client with a clientId other than this connection's needs the level operate")
	case len(entry) > maxClaimBytes:
		return no("an active client above %d bytes needs the level operate", maxClaimBytes)
	}
	return nil
}

// memberOf returns an object's member if its key has only one spelling, or nil.
func memberOf(object []byte, name string) []byte {
	m := [...]ahp.Member{{Name: name}}
	if ahp.Spelt(object, m[:]) != nil {
		return nil
	}
	return m[0].Raw
}

// withoutTools rewrites a permitted session/activeClientSet from a client below
// operate: its entry goes on without tools and customizations. All other messages
// pass.
func (a *Authority) withoutTools(message []byte, env *ahp.Envelope) Decision {
	if a.policy.Writes() || string(env.Method) != "dispatchAction" || string(env.Said.Type) != activeClientSet {
		return Decision{}
	}
	entry, ok := nested(message, "params", "action", "activeClient")
	if !ok {
		return Decision{Verdict: Answer} // unreachable: judgeAction has read it
	}
	name, _ := ahp.Text(memberOf(entry.Raw, "displayName"))
	bare, err := json.Marshal(activeClient{a.view.ClientID(), name, []string{}})
	if err != nil {
		return Decision{Verdict: Answer} // unreachable: strings can be encoded
	}
	if len(a.claims) >= maxClaims { // the host does not echo: drop the oldest
		a.claims = slices.Delete(a.claims, 0, 1)
	}
	seq, _ := ahp.MemberOf(env.Params, "clientSeq")
	a.claims = append(a.claims, claim{string(env.Channel), string(seq.Raw), bytes.Clone(entry.Raw)})
	var e view.Editor
	e.Replace(entry.Place(), bare)
	return Decision{Replace, e.Apply(message)}
}

// withOwnEntry returns the echo of this client's entry with the entry as the client
// sent it. ok is false for all other messages.
func (a *Authority) withOwnEntry(message []byte, env *ahp.Envelope) (echo []byte, ok bool) {
	if len(a.claims) == 0 || env == nil || env.Kind != ahp.Notification || string(env.Said.Type) != activeClientSet ||
		ahp.TextOf(env.Said.Origin, "clientId") != a.view.ClientID() {
		return nil, false
	}
	seq, _ := ahp.MemberOf(env.Said.Origin, "clientSeq")
	i := slices.IndexFunc(a.claims, func(c claim) bool { return c.channel == string(env.Channel) && c.seq == string(seq.Raw) })
	entry, found := nested(message, "params", "action", "activeClient")
	if i < 0 || !found {
		return nil, false
	}
	var e view.Editor
	e.Replace(entry.Place(), a.claims[i].entry)
	a.claims = slices.Delete(a.claims, i, i+1)
	return e.Apply(message), true
}

// nested returns the member at a path of names, with its place in the object.
func nested(object []byte, names ...string) (ahp.Member, bool) {
	at := ahp.Member{Raw: object}
	for _, name := range names {
		m, ok := ahp.MemberOf(at.Raw, name)
		if !ok {
			return ahp.Member{}, false
		}
		at = m.In(at)
	}
	return at, true
}
