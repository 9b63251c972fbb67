package audience

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// greetID is the id of the audience's own initialize.
const greetID = 0

// A greeting is a viewer's initialize or reconnect that is not answered yet.
type greeting struct {
	viewer   *Viewer
	id       []byte // raw
	form     form
	channels []string // the channels whose snapshots the answer needs
	answers  []*answer
	left     int // answers from the host that are still missing
}

// A form is the layout of snapshots in an answer.
type form int

const (
	toInitialize form = iota
	toReconnect       // {type: "snapshot", snapshots[]}
	toChannels        // {channels[]}, if the request's subscriptions[] are objects
)

func (v *Viewer) initialize(env *ahp.Envelope) {
	m := [...]ahp.Member{{Name: "clientId"}, {Name: "initialSubscriptions"}, {Name: "protocolVersions"}, {Name: "capabilities"}}
	if ahp.Members(env.Params, m[:]) != nil {
		v.refuse(env, ahp.CodeInvalidParams, "params has a duplicate member")
		return
	}
	clientID, ok := ahp.Text(m[0].Raw)
	channels, listed := ahp.Texts(m[1].Raw)
	if !ok || !listed && m[1].Raw != nil {
		v.refuse(env, ahp.CodeInvalidParams, "params need a clientId, and initialSubscriptions must be a list of strings")
		return
	}
	greeting := append([]byte(`"protocolVersions":`), or(compact(m[2].Raw), "[]")...)
	if m[3].Raw != nil {
		greeting = append(append(greeting, `,"capabilities":`...), compact(m[3].Raw)...)
	}
	v.begin(env, toInitialize, clientID, string(greeting), channels)
}

func or(raw []byte, other string) []byte {
	if raw == nil {
		return []byte(other)
	}
	return raw
}

// reconnect handles a viewer's reconnect. It is answered with snapshots.
func (v *Viewer) reconnect(env *ahp.Envelope) {
	clientID := ahp.TextOf(env.Params, "clientId")
	said, ok := v.pool.cfg.Memory.recall(v.name, clientID)
	if !ok || clientID == "" {
		v.refuse(env, ahp.CodeNotFound, "unknown client: initialize first")
		return
	}
	channels, form := []string(nil), toReconnect
	for _, e := range ahp.ElementsOf(ahp.RawOf(env.Params, "subscriptions")) {
		if ahp.IsObject(e.Raw) {
			form = toChannels
			channels = append(channels, ahp.TextOf(e.Raw, "channel"))
		} else if channel, ok := ahp.Text(e.Raw); ok {
			channels = append(channels, channel)
		}
	}
	v.begin(env, form, clientID, said, channels)
}

// begin puts the viewer into the audience for its protocol versions and capabilities (greets). It
// requests the snapshots of channels, as soon as the host has answered the audience's own
// initialize.
func (v *Viewer) begin(env *ahp.Envelope, form form, clientID, greets string, channels []string) {
	if v.phase != fresh {
		v.refuse(env, ahp.CodeInvalidRequest, "the connection is already initialized")
		return
	}
	if len(channels) > maxSubscriptions {
		v.refuse(env, ahp.CodeInvalidParams, fmt.Sprintf("more than %d channels", maxSubscriptions))
		return
	}
	a, err := v.pool.joinLocked(v, greets)
	switch {
	case errors.Is(err, errTooManyKinds):
		v.refuse(env, ahp.CodeRateLimited, err.Error())
		return
	case errors.Is(err, routing.ErrTooManyConns):
		v.lose(ahp.CloseOverloaded, err.Error())
		return
	case err != nil: // an error response would be final for some clients
		v.lose(ahp.CloseResync, "the link to the host-agent has ended")
		return
	}
	v.phase, v.clientID = joining, clientID
	slices.Sort(channels)
	g := &greeting{viewer: v, id: bytes.Clone(env.ID), form: form, channels: slices.Compact(channels)}
	if a.base == nil {
		a.greetings = append(a.greetings, g)
		return
	}
	a.begin(g)
}

func (a *audience) greetHost() {
	hello, _ := json.Marshal(map[string]string{"name": "ahp-relay audience"}) // never fails
	a.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"channel":%q,"clientId":%q,"clientInfo":%s,%s}}`,
		greetID, rootChannel, a.clientID, hello, a.greeting))
}

func (a *audience) greeted(ans *answer) {
	greetings := a.greetings
	a.greetings = nil
	if ans.err != nil {
		for _, g := range greetings {
			if v := g.viewer; v.in == a {
				ans.to(v, g.id, v.push)
				a.flush()
				a.leave(v)
				v.phase = fresh // the viewer may try again
			}
		}
		a.closeLocked(ahp.CloseShuttingDown, "")
		return
	}
	a.base = []byte{}
	ahp.Values(ans.env.Result, func(key, value []byte) bool {
		switch string(key) {
		case "snapshots":
		case "serverSeq":
			a.seq = max(a.seq, ahp.IntegerOf(value))
			a.acted = a.seq // the audience has no subscription yet
		default:
			name, _ := json.Marshal(string(key)) // never fails
			a.base = append(append(append(append(a.base, name...), ':'), value...), ',')
		}
		return true
	})
	for _, g := range greetings {
		if g.viewer.in == a {
			a.begin(g)
		}
	}
}

// begin requests a snapshot for each channel in a greeting.
func (a *audience) begin(g *greeting) {
	g.answers, g.left = make([]*answer, len(g.channels)), len(g.channels)+1
	for n, channel := range g.channels {
		w := &waiter{viewer: g.viewer, greet: g, place: n}
		g.viewer.join(channel, nil, w, func(string) { g.left-- })
	}
	g.done()
}

// part stores the host's answer for the channel at index place. If no answer is missing then, it
// answers the viewer.
func (g *greeting) part(place int, ans *answer) {
	if ans.err == nil {
		g.answers[place] = ans
	}
	g.done()
}

// done counts one answer from the host. After the last, it answers the viewer.
func (g *greeting) done() {
	if g.left--; g.left > 0 {
		return
	}
	v, a := g.viewer, g.viewer.in
	g.answer()
	v.phase, v.ready = live, true
	a.pool.cfg.Memory.remember(v.name, v.clientID, a.greeting)
	v.release()
}

// answer sends the viewer the answer to its initialize or reconnect, in pieces: the snapshots are
// pieces shared with other viewers.
func (g *greeting) answer() {
	v, a := g.viewer, g.viewer.in
	head := append(append([]byte(`{"jsonrpc":"2.0","id":`), g.id...), `,"result":{`...)
	switch g.form {
	case toInitialize:
		head = append(append(head, a.base...), `"serverSeq":`...)
		head = append(strconv.AppendInt(head, g.seq(), 10), `,"snapshots":[`...)
	case toReconnect:
		head = append(head, `"type":"snapshot","snapshots":[`...)
	case toChannels:
		head = append(head, `"channels":[`...)
	}
	packed, some := v.deflates && a.pool.cfg.Deflate != nil, false
	own := text{raw: head, first: true}
	for n, ans := range g.answers {
		before, after, ok := g.frame(n, ans)
		if !ok {
			continue
		}
		if some {
			own.raw = append(own.raw, ',')
		}
		own.raw, some = append(own.raw, before...), true
		if ans != nil && ans.snapshot.raw != nil {
			v.pushPart(&own, packed)
			v.pushPart(&ans.snapshot, packed)
			own = text{}
		}
		own.raw = append(own.raw, after...)
	}
	own.raw, own.last = append(own.raw, `]}}`...), true
	v.pushPart(&own, packed)
}

// pushPart is pushText for a part of a message.
func (v *Viewer) pushPart(t *text, packed bool) {
	for _, f := range t.frames(&v.pool.cfg, packed) {
		v.push(f)
	}
}

// frame returns the JSON before and after a channel's snapshot in the answer. It
// reports false if the channel has no place in the answer.
func (g *greeting) frame(n int, ans *answer) (before, after string, ok bool) {
	if g.form != toChannels {
		return "", "", ans != nil && ans.snapshot.raw != nil
	}
	channel, _ := json.Marshal(g.channels[n]) // never fails
	switch {
	case ans == nil:
		return `{"kind":"missing","channel":` + string(channel) + `}`, "", true
	case ans.snapshot.raw == nil: // the channel has no state
		return `{"kind":"replay","channel":` + string(channel) + `,"actions":[]}`, "", true
	}
	return `{"kind":"snapshot","channel":` + string(channel) + `,"snapshot":`, "}", true
}

// seq returns the answer's serverSeq, which must not exceed the serverSeq of any of
// its snapshots.
func (g *greeting) seq() int64 {
	seq := g.viewer.in.seq
	for _, ans := range g.answers {
		if ans != nil && ans.snapshot.raw != nil {
			seq = min(seq, ans.seq)
		}
	}
	return seq
}
