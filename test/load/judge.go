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

// A Report is the judge's result. Frames are counted on the viewers' connections.
type Report struct {
	Sent     int // by the host
	Received int // by the viewers
	InFlight int // sent, but not received when the connection ended
	Lost     int // frames missing before later ones, and actions that were never applied
	Repeated int // frames or actions that arrived twice, or that the other side never sent
	Up       int // frames that the host received from the viewers

	Faults []string // what is wrong, the first few of each kind
}

func (r *Report) fault(format string, args ...any) {
	if len(r.Faults) < 20 {
		r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
	}
}

// A hostConn is the host's record of one connection.
type hostConn struct {
	run            int // of the host
	received, sent [][]byte
}

// A transcript is the host's record of all connections.
type transcript struct {
	conns map[string]*hostConn // by label
	acts  [][]refclient.Action // by run: on the viewers' channels, in the host's order
}

// readTranscript reads the records of the host's runs.
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

// stateAt returns the chat's state after the action with the given serverSeq: that of a
// snapshot of the host's last run, with the later actions that the host sent. Clients
// outside the crowd may still write after the snapshot.
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

// labelOf returns the label in a greeting, or "" for another frame.
func labelOf(frame []byte) string {
	if !bytes.Contains(frame, []byte(`"clientInfo"`)) {
		return ""
	}
	var m struct {
		Params struct {
			ClientInfo struct{ Version string }
		}
	}
	_ = json.Unmarshal(frame, &m) // an unreadable frame has no label
	return m.Params.ClientInfo.Version
}

// judge compares a viewer's record with the host's.
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

// judgeWire judges one connection. A connection still open at the end has received the
// answer to a last request, and so everything before it.
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
		inFlight = 0 // later frames do not matter
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

// withoutHostAgents returns the messages without the requests that a host-agent
// sends on a client's connection in its own name, and without their answers.
func withoutHostAgents(messages [][]byte) [][]byte {
	return slices.DeleteFunc(slices.Clone(messages), refclient.IsHostAgents)
}

// withoutRelays returns the viewer's traffic without the relay's own answers, and
// without the requests behind them, which never reached the absent host.
func (w *wire) withoutRelays(c *hostConn) (sent, got [][]byte) {
	asked := map[int64]bool{} // the host
	for _, frame := range c.received {
		if in, ok := read(frame); ok && in.ID != nil {
			asked[*in.ID] = true
		}
	}
	answered := map[int64]bool{} // by the relay
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

// withoutPings removes pings and the first answer to each. A relay or proxy that
// answers pings for the host may do so early, and then drops the host's answer.
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

// compare counts the frames that are missing before later frames in got, and the frames
// that were never sent.
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

// judgeEpoch looks for actions that were not applied.
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
