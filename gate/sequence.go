package gate

import (
	"encoding/json"
	"sync/atomic"

	"ahprelay/ahp"
)

// A sequence is how far the client has got in what the host says, and who it
// says that it is: with that an action of its own is taken back.
type sequence struct {
	clientID string       // owned by FromClient's caller
	last     atomic.Int64 // the highest serverSeq that went to the client
}

// note takes a serverSeq that goes to the client, 0 if there is none.
func (s *sequence) note(seq int64) {
	for {
		last := s.last.Load()
		if seq <= last || s.last.CompareAndSwap(last, seq) {
			return
		}
	}
}

// fromClient takes note of the request that a connection begins with.
func (s *sequence) fromClient(env *ahp.Envelope) {
	switch string(env.Method) {
	case "initialize", "reconnect":
		m := [...]ahp.Member{{Name: "clientId"}, {Name: "lastSeenServerSeq"}}
		if ahp.Members(env.Params, m[:]) == nil {
			s.clientID, _ = ahp.Text(m[0].Raw)
			s.noteRaw(m[1].Raw)
		}
	}
}

// noteRaw takes a serverSeq as it stands in a message.
func (s *sequence) noteRaw(raw []byte) {
	var seq int64
	if raw != nil && json.Unmarshal(raw, &seq) == nil {
		s.note(seq)
	}
}

// notification takes note of what the host says unasked.
func (s *sequence) notification(env *ahp.Envelope) {
	switch string(env.Method) {
	case "action":
		if seq, err := env.Said.Seq(); err == nil {
			s.note(seq)
		}
	case "channel/frame", "channel/snapshot":
		s.result(env.Params)
	}
}

// result takes note of a result that may hold snapshots and actions.
func (s *sequence) result(raw []byte) {
	m := [...]ahp.Member{{Name: "serverSeq"}, {Name: "snapshot"}, {Name: "snapshots"}, {Name: "actions"}}
	if ahp.Members(raw, m[:]) != nil {
		return
	}
	s.noteRaw(m[0].Raw)
	s.member(m[1].Raw, "fromSeq")
	for _, e := range elements(m[2].Raw) {
		s.member(e.Raw, "fromSeq")
	}
	for _, e := range elements(m[3].Raw) {
		s.member(e.Raw, "serverSeq")
	}
}

func (s *sequence) member(object []byte, name string) {
	if m, ok := member(object, name); ok {
		s.noteRaw(m.Raw)
	}
}

// takeBack is the echo with which hosts reject an action, so that a client
// that has shown its effect already takes it back. It is nil for what is no
// action.
func (s *sequence) takeBack(env *ahp.Envelope, reason string) []byte {
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
		string(env.Channel), fields[0].Raw, s.last.Load(), origin{s.clientID, fields[1].Raw}, reason,
	}})
	if err != nil {
		return nil
	}
	return echo
}

// member returns a member of a raw object that has it.
func member(object []byte, name string) (ahp.Member, bool) {
	if object == nil {
		return ahp.Member{}, false
	}
	m := [...]ahp.Member{{Name: name}}
	err := ahp.Members(object, m[:])
	return m[0], err == nil && m[0].Raw != nil
}

// text returns a member of a raw object that is a string, or "".
func text(object []byte, name string) string {
	m, _ := member(object, name)
	s, _ := ahp.Text(m.Raw)
	return s
}

// elements returns the elements of a raw array, none for anything else.
func elements(raw []byte) []ahp.Member {
	if raw == nil {
		return nil
	}
	list, _ := ahp.Elements(raw)
	return list
}
