package gate

import (
	"encoding/json"

	"ahprelay/ahp"
)

// takeBack is [TakeBack] for the client of this connection.
func (a *Authority) takeBack(env *ahp.Envelope, reason string) []byte {
	return TakeBack(env, a.view.ClientID(), a.view.Seq(), reason)
}

// TakeBack is the echo with which hosts reject an action of a client's, so that a client
// that has shown its effect already takes it back. It is nil for what is no
// action, and for session/activeClientSet: VS Code repeats that as long as it is rejected, and without
// an echo, it takes its entry for one that is on its way.
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
