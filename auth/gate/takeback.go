package gate

import (
	"encoding/json"

	"ahprelay/ahp"
)

// unasked are actions that VS Code's window sends by itself: the settings that it wants
// when it connects, a draft when it opens a chat and while the user types, a read mark, and
// its entry as an active client. If the client's level does not permit such an action, the
// client gets an echo without a rejection. A rejection would delete the typed text, and a
// window repeats a rejected entry forever.
//
// The value is the action in the echo; nil means the client's own action. Then drafts, read
// marks and entries exist only in this client's copy of the state, until the host changes
// them or sends the state again. For settings, the echo contains none, so that the client
// keeps the host's settings.
var unasked = map[string]json.RawMessage{
	"chat/draftChanged":     nil,
	"chat/isReadChanged":    nil,
	"session/isReadChanged": nil,
	activeClientSet:         nil,
	"root/configChanged":    json.RawMessage(`{"type":"root/configChanged","config":{}}`),
}

// TakeBack returns the echo for a client's action that is not permitted. seq is the
// highest serverSeq that the client has received. The echo rejects the action, as hosts
// do, so that a client reverts an action that it has already applied. For an action in
// unasked, the echo has no rejectionReason, and settled is true. TakeBack returns nil for
// messages other than actions, and for session/activeClientSet with another client's
// clientId, which the client would repeat after a rejection.
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

// settles reports whether the echo for an action has no rejection, and returns the action
// in that echo.
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

// isEntryOf reports whether an active client's entry has the given clientId.
func isEntryOf(entry []byte, clientID string) bool {
	id, ok := ahp.Text(memberOf(entry, "clientId"))
	return ok && id != "" && id == clientID
}
