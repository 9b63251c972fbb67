package load

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/test/hostrecord"
	"ahprelay/test/refclient"
)

// A Report is the result of comparing the viewers' records with the host's. It counts
// frames on the viewers' connections.
type Report struct {
	Sent     int // frames that the host sent
	Received int // frames that the viewers received
	InFlight int // frames that were on their way when a connection ended
	Lost     int // frames missing before later frames, and actions that no viewer applied
	Repeated int // frames or actions that arrived twice, or that the sender has no record of
	Up       int // frames that the host received from the viewers

	Faults []string // descriptions of the first few faults of each kind
}

func (r *Report) fault(format string, args ...any) {
	if len(r.Faults) < 20 {
		r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
	}
}

// A hostConn is the host's record of a connection.
type hostConn struct {
	run            int // number of the host's run
	received, sent [][]byte
}

// A transcript is the host's record of all connections in all runs.
type transcript struct {
	conns map[string]*hostConn // connections, by the label in their greeting
	acts  [][]refclient.Action // for each run: the actions on the viewers' channels, by serverSeq
}

// readTranscript reads a record for each run of the host.
func readTranscript(files []string) (*transcript, error) {
	t := &transcript{conns: map[string]*hostConn{}}
	for run, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		frames, err := hostrecord.Read(f)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		t.add(run, frames)
	}
	return t, nil
}

func (t *transcript) add(run int, frames []agenthost.Frame) {
	numbered := map[int64]*hostConn{}
	var acts []refclient.Action
	for _, f := range frames {
		c := numbered[f.Conn]
		if c == nil {
			c = &hostConn{run: run}
			numbered[f.Conn] = c
		}
		if !f.Received {
			c.sent = append(c.sent, f.Data)
			if a, ok := refclient.ReadAction(f.Data); ok && slices.Contains(channels, a.Channel) {
				acts = append(acts, a)
			}
			continue
		}
		c.received = append(c.received, f.Data)
		if label := labelOf(f.Data); label != "" {
			t.conns[label] = c
		}
	}
	slices.SortFunc(acts, func(a, b refclient.Action) int { return cmp.Compare(a.ServerSeq, b.ServerSeq) })
	t.acts = append(t.acts, slices.CompactFunc(acts, func(a, b refclient.Action) bool { return a.ServerSeq == b.ServerSeq }))
}

// stateAt returns the chat's state after the action with serverSeq seq. It takes a
// snapshot from the host's last run and applies the actions that the host sent later.
// These include actions from clients outside the crowd, which may write after the
// snapshot.
func (t *transcript) stateAt(s refclient.Snapshot, seq int64) (*chatState, error) {
	state := &chatState{}
	if err := state.load(s.State); err != nil {
		return nil, err
	}
	for _, a := range t.acts[len(t.acts)-1] {
		if a.Channel != chat || a.ServerSeq <= s.FromSeq || a.ServerSeq > seq {
			continue
		}
		if err := state.apply(a.Action); err != nil {
			return nil, err
		}
	}
	return state, nil
}

// labelOf returns the connection's label if the frame is a greeting, or "".
func labelOf(frame []byte) string {
	if !bytes.Contains(frame, []byte(`"clientInfo"`)) {
		return ""
	}
	var m struct {
		Params struct {
			ClientInfo struct{ Version string }
		}
	}
	_ = json.Unmarshal(frame, &m) // a frame that is not JSON has no label
	return m.Params.ClientInfo.Version
}

// judge compares all connections of a viewer, and the actions that it has applied, with
// the host's record. It adds the differences to r.
func (t *transcript) judge(v *Viewer, r *Report) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range v.wires {
		t.judgeWire(w, w == v.open, r)
	}
	for _, e := range v.epochs {
		t.judgeEpoch(v, e, r)
	}
	for _, fault := range v.faults {
		r.Repeated++
		r.fault("%s", fault)
	}
}

// judgeWire compares the frames of a connection in both directions. On a connection
// that is still open, no frame is on its way: the viewer has received the answer to a
// last request.
func (t *transcript) judgeWire(w *wire, open bool, r *Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := t.conns[w.label]
	if c == nil {
		c = &hostConn{}
	}
	fromHost, toHost := withoutHostAgents(c.sent), withoutHostAgents(c.received)
	sent, got := w.withoutRelays(c)
	if w.to.AnswersPings {
		fromHost, toHost, sent, got = w.withoutPings(fromHost), w.withoutPings(toHost), w.withoutPings(sent), w.withoutPings(got)
	}
	lost, odd := compare(r, w.label+", to the client", fromHost, got)
	inFlight := len(fromHost) - (len(got) - odd + lost)
	if open {
		inFlight = 0 // the host sent these frames after the last request
	}
	r.Sent += len(got) - odd + lost + inFlight
	r.Received += len(got)
	r.InFlight += inFlight
	r.Up += len(toHost)
	r.Lost += lost
	r.Repeated += odd
	lost, odd = compare(r, w.label+", to the host", sent, toHost)
	r.Lost += lost
	r.Repeated += odd
}

// withoutHostAgents removes the requests that a host-agent itself has sent on a
// client's connection, and their answers.
func withoutHostAgents(messages [][]byte) [][]byte {
	return slices.DeleteFunc(slices.Clone(messages), refclient.IsHostAgents)
}

// withoutRelays removes, from a viewer's frames, the relay's own answers and the
// requests that the relay answered itself, which never reached the host.
func (w *wire) withoutRelays(c *hostConn) (sent, got [][]byte) {
	asked := map[int64]bool{} // ids of the requests that the host received
	for _, frame := range c.received {
		if in, ok := read(frame); ok && in.ID != nil {
			asked[*in.ID] = true
		}
	}
	answered := map[int64]bool{} // ids of the requests that the relay answered
	for _, frame := range w.got {
		in, ok := read(frame)
		if ok && in.Method == "" && in.ID != nil && !asked[*in.ID] && !answered[*in.ID] &&
			(w.pings[*in.ID] && !w.to.AnswersPings || in.Error != nil && in.Error.Code == ahp.CodeHostOffline) {
			answered[*in.ID] = true
			continue
		}
		got = append(got, frame)
	}
	for _, frame := range w.sent {
		if in, ok := read(frame); ok && in.ID != nil && answered[*in.ID] {
			continue
		}
		sent = append(sent, frame)
	}
	return sent, got
}

// withoutPings removes pings, and the first answer to each. A relay or proxy that
// answers pings itself may answer earlier than the host, and then drops the host's
// answer.
func (w *wire) withoutPings(messages [][]byte) [][]byte {
	answered := map[int64]bool{}
	return slices.DeleteFunc(slices.Clone(messages), func(frame []byte) bool {
		in, ok := read(frame)
		if !ok || in.ID == nil || !w.pings[*in.ID] || in.Method == "" && answered[*in.ID] {
			return false
		}
		answered[*in.ID] = answered[*in.ID] || in.Method == ""
		return in.Method == "" || in.Method == "ping"
	})
}

func read(frame []byte) (in incoming, ok bool) {
	return in, json.Unmarshal(frame, &in) == nil
}

// compare returns how many frames in sent are missing in got before later frames, and
// how many frames in got are not in sent.
func compare(r *Report, what string, sent, got [][]byte) (lost, odd int) {
	next := 0
	for i, frame := range got {
		if next < len(sent) && bytes.Equal(frame, sent[next]) {
			next++
			continue
		}
		ahead := slices.IndexFunc(sent[next:], func(s []byte) bool { return bytes.Equal(s, frame) })
		if ahead < 0 {
			odd++
			r.fault("%s: frame %d was sent before, or never: %.120s", what, i, frame)
			continue
		}
		lost += ahead
		r.fault("%s: %d frames are missing before frame %d", what, ahead, i)
		next += ahead + 1
	}
	return lost, odd
}

// judgeEpoch finds actions that a viewer should have applied in an epoch and did not.
func (t *transcript) judgeEpoch(v *Viewer, e *epoch, r *Report) {
	c := t.conns[e.label]
	if c == nil {
		r.fault("%s: the host knows nothing of %s, on which it got a snapshot", v.id, e.label)
		return
	}
	applied := map[int64]bool{}
	for _, seq := range e.applied {
		applied[seq] = true
	}
	missing := 0
	for _, a := range t.acts[c.run] {
		if seq := a.ServerSeq; seq > e.from && seq <= e.last() && !applied[seq] {
			missing++
		}
	}
	if missing > 0 {
		r.Lost += missing
		r.fault("%s: %d actions of %d to %d were not applied", v.id, missing, e.from, e.last())
	}
}
