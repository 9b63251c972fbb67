package gate

import (
	"encoding/json"

	"ahprelay/ahp"
)

// unasked are the actions that a client sends without its user: VS Code's window sends
// the settings it wants when it connects, a draft when it opens a chat and while the
// user types, a read mark, and its entry as an active client. If the client's level forbids
// such an action, the echo to the client has no rejection. A rejection would remove the
// typed text, and a window repeats a rejected entry without end.
//
// The value is the action in the echo, or nil for the client's own action: drafts, read
// marks and entries then stand in this client's copy of the state alone, until the host
// changes them or sends the state again. Settings do not: with an echo that has none,
// the client keeps the host's settings.
var unasked = map[string]json.RawMessage{
	"chat/draftChanged":     nil,
	"chat/isReadChanged":    nil,
	"session/isReadChanged": nil,
	activeClientSet:         nil,
	"root/configChanged":    json.RawMessage(`{"type":"root/configChanged","config":{}}`),
}

// TakeBack returns the echo of a client's action that may not pass, with the highest
// serverSeq that the client has received. The echo rejects the action, as hosts do, so
// that a client reverts an action it has already applied. It settles an action the
// client sends without its user: the echo has no rejectionReason. TakeBack returns nil
// for messages other than actions, and for session/activeClientSet with a different
// client's clientId, which would be repeated after a rejection.
func TakeBack(env *ahp.Envelope, clientID string, seq int64, reason string) (echo []byte, settled bool) {
	fields := [...]ahp.Member{{Name: "action"}, {Name: "clientSeq"}}
	if ahp.Members(env.Params, fields[:]) != nil || fields[0].Raw == nil || fields[1].Raw == nil {
		return nil, false
	}
	action, settled := settles(env, fields[0].Raw, clientID)
	switch {
	case settled:
		reason = ""
	case string(env.Said.Type) == activeClientSet:
		return nil, false
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
		RejectionReason string          `json:"rejectionReason,omitempty"`
	}
	echo, err := json.Marshal(struct {
		JSONRPC string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  params `json:"params"`
	}{"2.0", "action", params{
		string(env.Channel), action, seq, origin{clientID, fields[1].Raw}, reason,
	}})
	if err != nil {
		return nil, false
	}
	return echo, settled
}

// settles returns the action for an echo, and whether the echo settles it.
func settles(env *ahp.Envelope, action []byte, clientID string) (echoed json.RawMessage, ok bool) {
	kind := string(env.Said.Type)
	instead, known := unasked[kind]
	switch {
	case !known || env.Misspelt:
		return action, false
	case kind == activeClientSet && !isEntryOf(memberOf(action, "activeClient"), clientID):
		return action, false
	case instead != nil:
		return instead, true
	}
	return action, true
}

// isEntryOf reports whether an active client's entry has a client's clientId.
func isEntryOf(entry []byte, clientID string) bool {
	id, ok := ahp.Text(memberOf(entry, "clientId"))
	return ok && id != "" && id == clientID
}
