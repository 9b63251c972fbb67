package gate

import (
	"encoding/json"

	"ahprelay/ahp"
)

// takeBack calls [TakeBack] for this connection's client.
func (a *Authority) takeBack(env *ahp.Envelope, reason string) []byte {
	return TakeBack(env, a.view.ClientID(), a.view.Seq(), reason)
}

// TakeBack returns the echo with which hosts reject a client's action, so that a
// client reverts an action it has already applied. It returns nil for messages other
// than actions, and for session/activeClientSet: VS Code repeats that action as long
// as it is rejected, and without an echo treats its entry as still on its way.
func TakeBack(env *ahp.Envelope, clientID string, seq int64, reason string) []byte {
	if string(env.Said.Type) == activeClientSet {
		return nil
	}
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
		string(env.Channel), fields[0].Raw, seq, origin{clientID, fields[1].Raw}, reason,
	}})
	if err != nil {
		return nil
	}
	return echo
}
