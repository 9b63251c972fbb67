package audience

import (
	"ahprelay/ahp"
	"ahprelay/routing"
)

const (
	// longest is the longest piece of a message, in bytes. Control frames may be sent
	// between two pieces.
	longest = 128 << 10

	// Shorter texts are not compressed, because they gain little.
	packLeast   = 256     // for a notification, in bytes
	packAnswers = 1 << 10 // for an answer, which also has a piece for each viewer
)

// A text is a message or a part of a message for several viewers. It is encoded once,
// and compressed once for the viewers that want compression. Pieces are compressed
// without earlier context, so pieces of several texts can form a message.
type text struct {
	raw         []byte
	first, last bool // part of its message
	plain       []routing.Frame
	packed      []routing.Frame
}

// frames returns the text's output, plain or compressed. Each form is made once, when
// it is first needed.
func (t *text) frames(cfg *Config, packed bool) []routing.Frame {
	made, encode := &t.plain, cfg.Encode
	if packed {
		made, encode = &t.packed, cfg.Deflate
	}
	if *made != nil {
		return *made
	}
	for rest, first := t.raw, t.first; *made == nil || len(rest) > 0; first = false {
		piece := rest[:min(len(rest), longest)]
		rest = rest[len(piece):]
		last := t.last && len(rest) == 0
		data := encode(piece, first, last, false)
		f := routing.Frame{Data: data, Shared: &routing.Shared{Size: len(data)}}
		if last {
			f.Messages = 1
		}
		*made = append(*made, f)
	}
	return *made
}

// packs reports whether to compress a text of the given length for this viewer. Texts shorter than
// least are not compressed.
func (v *Viewer) packs(bytes, least int) bool {
	return v.deflates && bytes >= least && v.pool.cfg.Deflate != nil
}

type answer struct {
	env      ahp.Envelope
	rest     text   // everything after the id
	snapshot text   // raw is nil if there is none
	seq      int64  // fromSeq of the snapshot
	size     int    // length of rest in bytes; decides about compression
	err      []byte // the host's error as raw JSON; nil: success
}

// readAnswer parses an answer and copies it. Call it without the pool's mutex, because
// answers may be long.
func readAnswer(env ahp.Envelope) *answer {
	ans := &answer{env: env, err: env.Error}
	body, name := env.Result, `"result":`
	if ans.err != nil {
		body, name = ans.err, `"error":`
	}
	rest := make([]byte, 0, len(name)+len(body)+1)
	rest = append(append(append(rest, name...), body...), '}')
	if env.Channel != nil {
		rest = ahp.AppendChannel(rest, env.Channel)
	}
	ans.rest, ans.size = text{raw: rest, last: true}, len(rest)
	if state := ahp.RawOf(env.Result, "snapshot"); ahp.IsObject(state) {
		ans.snapshot = text{raw: state}
		ans.seq = ahp.IntegerOf(ahp.RawOf(state, "fromSeq"))
	}
	return ans
}

// to sends an answer to one viewer: first the viewer's own request id, then the rest,
// which is shared by all viewers.
func (ans *answer) to(v *Viewer, id []byte, push func(routing.Frame)) {
	head := append(append([]byte(`{"jsonrpc":"2.0","id":`), id...), ',')
	cfg, packed := &v.pool.cfg, v.packs(ans.size, packAnswers)
	encode := cfg.Encode
	if packed {
		encode = cfg.Deflate
	}
	push(routing.Frame{Data: encode(head, true, false, false)})
	for _, f := range ans.rest.frames(cfg, packed) {
		push(f)
	}
}

// prepare encodes the parts of an answer for its waiting viewers. It works without the
// pool's mutex, because long answers take time. The branches select the forms that
// these viewers need: the whole answer or its snapshot, plain or compressed.
func (a *audience) prepare(s *hostMessage) {
	s.answer = readAnswer(s.env)
	id, err := ahp.Integer(s.env.ID)
	if err != nil {
		return
	}
	var plain, packed, shown, shownPacked bool
	a.pool.mu.Lock()
	if q := a.underWay[id]; q != nil {
		for _, w := range q.flying {
			greets := w.greet != nil
			packs := w.viewer.packs(s.answer.size, packAnswers)
			plain, packed = plain || !greets && !packs, packed || !greets && packs
			shown, shownPacked = shown || greets && !w.viewer.deflates, shownPacked || greets && w.viewer.deflates
		}
	}
	a.pool.mu.Unlock()
	cfg := &a.pool.cfg
	for _, need := range []struct {
		is     bool
		t      *text
		packed bool
	}{{plain, &s.answer.rest, false}, {packed, &s.answer.rest, true}, {shown, &s.answer.snapshot, false}, {shownPacked && cfg.Deflate != nil, &s.answer.snapshot, true}} {
		if need.is && need.t.raw != nil {
			need.t.frames(cfg, need.packed)
		}
	}
}
