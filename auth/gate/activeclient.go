package gate

import (
	"bytes"
	"encoding/json"
	"slices"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A client that writes to a session sends session/activeClientSet, with an entry that
// offers the client's tools and customizations. VS Code's window repeats the action until
// the session's state contains exactly this entry. If the relay rejected the action or
// changed the entry, VS Code would repeat the action forever.
//
// The agent obeys tool descriptions, and the host runs plugins. So for a client below the
// level operate, the gate sends the host the entry without customizations and with an
// empty list of tools. The host echoes that entry to all clients. In the echo to this
// client, the gate restores the client's entry, and leaves the rest, including serverSeq,
// as the host sent it. If an entry is not permitted at all, [TakeBack] handles the action.

// activeClientSet is the type of this action.
const activeClientSet = "session/activeClientSet"

// Limits for the entries on a connection that the host has not echoed yet.
const (
	maxClaims     = 16
	maxClaimBytes = 64 << 10 // longest entry in bytes
)

// A claim is an entry that the gate has sent to the host without its tools.
type claim struct {
	channel string
	seq     string // clientSeq as the client sent it
	entry   []byte // entry as the client sent it
}

// An activeClient is an entry as it is sent to the host.
type activeClient struct {
	ClientID    string   `json:"clientId"`
	DisplayName string   `json:"displayName,omitempty"`
	Tools       []string `json:"tools"` // always empty; hosts require the member
}

// judgeActiveClient returns the reason why a client below the level operate may not enter
// a session with this entry, or nil.
func (a *Authority) judgeActiveClient(entry []byte) *refusal {
	switch {
	case !isEntryOf(entry, a.view.ClientID()):
		return no("an active client with a clientId other than this connection's needs the level operate")
	case len(entry) > maxClaimBytes:
		return no("an active client above %d bytes needs the level operate", maxClaimBytes)
	}
	return nil
}

// memberOf returns an object's member, or nil if it is missing or its key occurs in
// several spellings.
func memberOf(object []byte, name string) []byte {
	m := [...]ahp.Member{{Name: name}}
	if ahp.Spelt(object, m[:]) != nil {
		return nil
	}
	return m[0].Raw
}

// withoutTools handles session/activeClientSet from a client below the level operate: it
// removes tools and customizations from the entry. All other messages pass.
func (a *Authority) withoutTools(message []byte, env *ahp.Envelope) Decision {
	if a.policy.Writes() || string(env.Method) != "dispatchAction" || string(env.Said.Type) != activeClientSet {
		return Decision{}
	}
	entry, ok := ahp.MemberOf(message, "params", "action", "activeClient")
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
	a.claims = append(a.claims, claim{string(env.Channel), string(ahp.RawOf(env.Params, "clientSeq")), bytes.Clone(entry.Raw)})
	var e view.Editor
	e.Replace(entry.Place(), bare)
	return Decision{Replace, e.Apply(message)}
}

// withOwnEntry returns the echo of this client's entry, with the entry as the client sent
// it. ok is false for all other messages.
func (a *Authority) withOwnEntry(message []byte, env *ahp.Envelope) (echo []byte, ok bool) {
	if len(a.claims) == 0 || env == nil || env.Kind != ahp.Notification || string(env.Said.Type) != activeClientSet ||
		ahp.TextOf(env.Said.Origin, "clientId") != a.view.ClientID() {
		return nil, false
	}
	seq := string(ahp.RawOf(env.Said.Origin, "clientSeq"))
	i := slices.IndexFunc(a.claims, func(c claim) bool { return c.channel == string(env.Channel) && c.seq == seq })
	entry, found := ahp.MemberOf(message, "params", "action", "activeClient")
	if i < 0 || !found {
		return nil, false
	}
	var e view.Editor
	e.Replace(entry.Place(), a.claims[i].entry)
	a.claims = slices.Delete(a.claims, i, i+1)
	return e.Apply(message), true
}
