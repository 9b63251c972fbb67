package sealed

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/ahp"
)

// A hall is a sealed host and two viewers, which enter and leave the same crowds together. It
// records the frames for each viewer as a relay would see them.
type hall struct {
	readers [2]*reader
	crowds  map[string]*Crowd // x and y
	told    map[string][]byte // by message: the first frame that contains it
}

// newHall returns a hall whose host has sent a whole conversation to both viewers: they get own
// messages, enter crowd x, then y, then x again, and get messages in each. The function session
// returns the sessions for each viewer.
func newHall(t testing.TB, session func(reader int) (client, host *Session)) *hall {
	t.Helper()
	c := &hall{crowds: map[string]*Crowd{}, told: map[string][]byte{}}
	for i := range c.readers {
		c.readers[i] = &reader{}
		c.readers[i].client, c.readers[i].host = session(i)
	}
	for _, name := range []string{"x", "y"} {
		var err error
		if c.crowds[name], err = NewCrowd(); err != nil {
			t.Fatal(err)
		}
	}
	c.own(t, "first")
	c.enter(t, "x")
	c.tell(t, "x", "a", "b")
	c.tell(t, "x", "c")
	if _, err := c.crowds["x"].Enter(); err != nil { // a third viewer enters, so the key changes
		t.Fatal(err)
	}
	c.tell(t, "x", "d")
	c.beat(t, "x")
	c.tell(t, "x", strings.Repeat("long", pieceSize/4))
	c.tell(t, "x", "e")
	c.leave(t, "x")
	c.own(t, "second")
	c.enter(t, "y")
	c.tell(t, "y", "f")
	c.leave(t, "y")
	c.enter(t, "x")
	c.tell(t, "x", "g")
	c.leave(t, "x")
	for _, r := range c.readers {
		r.seal(t, Close, AppendClose(ahp.CloseShuttingDown, ""))
	}
	return c
}

func (c *hall) own(t testing.TB, text string) {
	t.Helper()
	for _, r := range c.readers {
		r.seal(t, Message, []byte(text))
		r.sent = append(r.sent, text)
	}
}

func (c *hall) enter(t testing.TB, crowd string) {
	t.Helper()
	body, err := c.crowds[crowd].Enter()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.readers {
		r.seal(t, Place, body)
	}
}

func (c *hall) leave(t testing.TB, crowd string) {
	t.Helper()
	for _, r := range c.readers {
		r.seal(t, Place, c.crowds[crowd].Leave())
	}
}

func (c *hall) tell(t testing.TB, crowd string, texts ...string) {
	t.Helper()
	var messages [][]byte
	for _, text := range texts {
		messages = append(messages, []byte(text))
	}
	frames, err := c.crowds[crowd].Tell(messages...)
	c.deliver(t, frames, err, texts...)
}

func (c *hall) beat(t testing.TB, crowd string) {
	t.Helper()
	frames, err := c.crowds[crowd].Beat()
	c.deliver(t, frames, err, string(AppendHeartbeat(0)))
}

func (c *hall) deliver(t testing.TB, frames [][]byte, err error, texts ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		c.told[text] = frames[0]
	}
	for _, r := range c.readers {
		r.frames = append(r.frames, frames...)
		r.sent = append(r.sent, texts...)
	}
}

// place returns the index of a crowd's message in the first viewer's frames.
func (c *hall) place(text string) int {
	return slices.IndexFunc(c.readers[0].frames, func(f []byte) bool { return bytes.Equal(f, c.told[text]) })
}

// forge returns a frame with the number of a message in crowd x, and a different text. It uses the
// crowd's key, which each member has. The member does not have the host's signing key: it signs
// with its own (signs), or copies the signature.
func (c *hall) forge(t testing.TB, text, other string, signs bool) []byte {
	t.Helper()
	frame := c.told[text]
	forger := &Crowd{number: uint64(frame[crowdHead-1]), generation: uint32(frame[4]), key: c.crowds["x"].key}
	var err1, err2 error
	forger.signer, err1 = NewDevice()
	forger.aead, err2 = newAEAD(forger.key[:])
	made, err3 := forger.Tell([]byte(other))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if !signs {
		copy(made[0][crowdHead:crowdFront], frame[crowdHead:])
	}
	return made[0]
}

// A toldLie is a way in which a relay changes the frames for the first viewer, with the second
// viewer's help.
type toldLie struct {
	name   string
	change func(t testing.TB, c *hall, f, second [][]byte) [][]byte
}

// simply returns a function for a toldLie that uses only the first viewer's frames.
func simply(change func(c *hall, f [][]byte) [][]byte) func(testing.TB, *hall, [][]byte, [][]byte) [][]byte {
	return func(_ testing.TB, c *hall, f, _ [][]byte) [][]byte { return change(c, f) }
}

var toldLies = []toldLie{
	{"drops a message", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("c"), 1) })},
	{"drops the first message", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("a"), 1) })},
	{"drops the last message before the viewer leaves", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("e"), 1) })},
	{"drops the first message of a new key", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("d"), 1) })},
	{"drops a heartbeat", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("d")+1, 1) })},
	{"drops all messages of all crowds", simply(func(_ *hall, f [][]byte) [][]byte {
		return slices.DeleteFunc(f, func(f []byte) bool { return kind(f[0]) == kindCrowd })
	})},
	{"drops an entrance", simply(func(_ *hall, f [][]byte) [][]byte { return without(f, 1, 1) })},
	{"drops a leave", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("e")+1, 1) })},
	{"drops leave and entrance", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("f")+1, 2) })},
	{"drops a stay", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("f")-1, 3) })},
	{"withholds the tail", simply(func(c *hall, f [][]byte) [][]byte { return f[:c.place("g")] })},
	{"repeats a message", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("c"), f[c.place("c")], f[c.place("c")]) })},
	{"repeats an old message", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("e"), c.told["a"], c.told["e"]) })},
	{"replaces a message with an old one", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("c"), c.told["a"]) })},
	{"swaps messages", simply(func(c *hall, f [][]byte) [][]byte { return exchange(f, c.place("a"), c.place("c")) })},
	{"swaps messages around a new key", simply(func(c *hall, f [][]byte) [][]byte { return exchange(f, c.place("c"), c.place("d")) })},
	{"swaps pieces of a long message", simply(func(c *hall, f [][]byte) [][]byte { return exchange(f, c.place("e")-1, c.place("e")-2) })},
	{"drops a piece of a long message", simply(func(c *hall, f [][]byte) [][]byte { return without(f, c.place("e")-1, 1) })},
	{"delivers before the entrance", simply(func(c *hall, f [][]byte) [][]byte { return exchange(f, 1, 2) })},
	{"delivers before the record in front of the entrance", simply(func(_ *hall, f [][]byte) [][]byte {
		return slices.Concat(f[1:3], f[:1], f[3:])
	})},
	{"delivers behind the leave", simply(func(c *hall, f [][]byte) [][]byte { return exchange(f, c.place("e"), c.place("e")+1) })},
	{"delivers a record inside of the crowd", simply(func(c *hall, f [][]byte) [][]byte {
		i := c.place("e")
		return slices.Concat(f[:i], f[i+2:i+3], f[i:i+2], f[i+3:])
	})},
	{"splices a message of a later crowd", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("a"), c.told["f"]) })},
	{"splices a message of an earlier crowd", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("f"), c.told["a"]) })},
	{"replays the first stay in the second", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("g"), c.told["a"], c.told["c"]) })},
	{"gives what the viewer missed in its absence", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("f")-2, c.told["g"]) })},
	{"changes a generation", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("c"), flipped(c.told["c"], 4)) })},
	{"changes a number", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("c"), flipped(c.told["c"], 12)) })},
	{"changes a signature", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("c"), flipped(c.told["c"], 20)) })},
	{"changes a message", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("c"), flipped(c.told["c"], crowdFront)) })},
	{"changes a message's own tag", simply(func(c *hall, f [][]byte) [][]byte {
		return at(f, c.place("c"), flipped(c.told["c"], len(c.told["c"])-1))
	})},
	{"truncates a message", simply(func(c *hall, f [][]byte) [][]byte { return at(f, c.place("c"), c.told["c"][:crowdFront+tagSize]) })},
	{"lengthens a message", simply(func(c *hall, f [][]byte) [][]byte {
		return at(f, c.place("c"), append(bytes.Clone(c.told["c"]), make([]byte, pieceSize)...))
	})},
	{"gives a crowd's message as a record", simply(func(c *hall, f [][]byte) [][]byte {
		return at(f, c.place("c"), append([]byte{byte(kindRecord)}, c.told["c"][crowdFront:]...))
	})},
	{"gives a crowd's message as a shared body", simply(func(c *hall, f [][]byte) [][]byte {
		return at(f, c.place("c"), append([]byte{byte(kindBody)}, c.told["c"][1:]...))
	})},
	{"gives a record as a crowd's message", simply(func(c *hall, f [][]byte) [][]byte {
		return at(f, c.place("c"), append(bytes.Clone(c.told["c"][:crowdFront]), f[0]...))
	})},
	{"puts a tag into a crowd", simply(func(c *hall, f [][]byte) [][]byte {
		return at(f, c.place("c"), append([]byte{byte(kindTag)}, make([]byte, tagSize)...), c.told["c"])
	})},
	{"delivers the second viewer's entrance", func(_ testing.TB, _ *hall, f, second [][]byte) [][]byte { return at(f, 1, second[1]) }},
	{"delivers the second viewer's leave", func(_ testing.TB, c *hall, f, second [][]byte) [][]byte {
		return at(f, c.place("e")+1, second[c.place("e")+1])
	}},
	{"reflects the entrance", simply(func(_ *hall, f [][]byte) [][]byte { return at(f, 2, f[1], f[2]) })},
	{"forges with a member's help", func(t testing.TB, c *hall, f, _ [][]byte) [][]byte {
		return at(f, c.place("g"), c.forge(t, "g", "x", false))
	}},
	{"forges and signs with a member's key", func(t testing.TB, c *hall, f, _ [][]byte) [][]byte {
		return at(f, c.place("g"), c.forge(t, "g", "x", true))
	}},
	{"adds a forged message", func(t testing.TB, c *hall, f, _ [][]byte) [][]byte {
		made := c.forge(t, "g", "x", true)
		made[crowdHead-1]++
		return at(f, c.place("g"), c.told["g"], made)
	}},
}

// wantFound delivers changed frames to the first viewer, and fails unless the viewer refuses them:
// see reader.wantFound.
func (c *hall) wantFound(t interface {
	Helper()
	Fatalf(string, ...any)
}, frames [][]byte) {
	t.Helper()
	c.readers[0].wantFound(t, frames)
}

// TestLiesToACrowdAreFound delivers frames with each of toldLies to a viewer in crowds. The viewer
// must refuse them.
func TestLiesToACrowdAreFound(t *testing.T) {
	for _, lie := range toldLies {
		t.Run(lie.name, func(t *testing.T) {
			c := newHall(t, handshaken(t))
			c.wantFound(t, lie.change(t, c, slices.Clone(c.readers[0].frames), c.readers[1].frames))
		})
	}
}

// TestHonestCrowdsAreHeard delivers unchanged frames to both viewers. Each must receive all
// messages.
func TestHonestCrowdsAreHeard(t *testing.T) {
	c := newHall(t, handshaken(t))
	for i, r := range c.readers {
		got, whole, err := r.deliver(r.frames)
		if err != nil || !whole || !slices.Equal(got, r.sent) {
			t.Errorf("viewer %d opens %d messages, whole %v, %v; want %d, and true", i, len(got), whole, err, len(r.sent))
		}
	}
}

// keyed returns a function for newHall that makes sessions with keys derived from a seed, without
// handshakes.
func keyed(t testing.TB, seed []byte) func(int) (client, host *Session) {
	return func(i int) (client, host *Session) {
		in, err1 := newHalf([32]byte(digest("test", seed, []byte{byte(i), 0})))
		out, err2 := newHalf([32]byte(digest("test", seed, []byte{byte(i), 1})))
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return &Session{client: true, limit: 1 << 20, in: in, out: out}, &Session{limit: 1 << 20, in: out, out: in}
	}
}

// TestRandomLiesToACrowdAreFound changes the frames for a viewer at random, also with frames of the
// second viewer and forged frames. The viewer must refuse the frames.
func TestRandomLiesToACrowdAreFound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newHall(t, keyed(t, rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(rt, "keys")))
		r := c.readers[0]
		frames := slices.Clone(r.frames)
		pool := slices.Concat(r.frames, c.readers[1].frames)
		pool = append(pool, c.forge(t, "g", "x", true), c.forge(t, "g", "x", false))
		for range rapid.IntRange(1, 5).Draw(rt, "lies") {
			frames = manipulate(rt, frames, pool, 6)
		}
		n := len(r.frames)
		if len(frames) >= n && slices.EqualFunc(frames[:n], r.frames, bytes.Equal) {
			rt.Skip("nothing is changed")
		}
		c.wantFound(rt, frames)
	})
}

// TestLateViewerOpensNothingEarlier lets a viewer enter a crowd that has already sent a message.
// The viewer's key must not open that message, but open the next.
func TestLateViewerOpensNothingEarlier(t *testing.T) {
	c, err := NewCrowd()
	if err != nil {
		t.Fatal(err)
	}
	before, err1 := c.Tell([]byte("before"))
	body, err2 := c.Enter()
	after, err3 := c.Tell([]byte("after"))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	late := &Session{client: true, limit: 1 << 20}
	if err := late.sit(body); err != nil {
		t.Fatal(err)
	}
	seat := late.seat
	if _, err := seat.aead.Open(nil, crowdNonce(before[0][:crowdHead]), before[0][crowdFront:], before[0][:crowdHead]); err == nil {
		t.Error("the late viewer's key opens a message sealed before its arrival; want an error")
	}
	if _, message, _, err := late.Open(after[0]); err != nil || string(message) != "after" {
		t.Errorf("the late viewer receives %q, %v; want the message after", message, err)
	}
}

// A toldVector is a conversation with crowds as a client receives it: the client's key for records,
// the frames, and the messages that they open as.
type toldVector struct {
	Key    hexBytes   `json:"key"`
	Frames []hexBytes `json:"frames"`
	Opened []hexBytes `json:"opened"`
}

const crowdFile = "testdata/crowd.json"

// TestCrowdVectorsOpen opens the frames in testdata/crowd.json and compares the messages. It does
// not compare sealed frames, because each signature is different.
func TestCrowdVectorsOpen(t *testing.T) {
	session := func(key []byte) (client, host *Session) {
		half, err := newHalf([32]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return &Session{client: true, limit: 1 << 20, in: half}, &Session{out: half}
	}
	if *update {
		v := toldVector{Key: fixed(1, 32)}
		c := newHall(t, func(i int) (client, host *Session) {
			key := fixed(1, 32)
			key[0] += byte(i)
			return session(key)
		})
		for _, f := range c.readers[0].frames {
			v.Frames = append(v.Frames, f)
		}
		for _, text := range c.readers[0].sent {
			v.Opened = append(v.Opened, []byte(text))
		}
		data, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(crowdFile, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(crowdFile)
	if err != nil {
		t.Fatal(err)
	}
	var v toldVector
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	r := &reader{}
	r.client, _ = session(v.Key)
	var frames [][]byte
	for _, f := range v.Frames {
		frames = append(frames, f)
	}
	got, whole, err := r.deliver(frames)
	if err != nil || !whole || !slices.EqualFunc(got, v.Opened, func(a string, b hexBytes) bool { return a == string(b) }) {
		t.Errorf("%d messages open, whole %v, %v; want %d", len(got), whole, err, len(v.Opened))
	}
}

// FuzzCrowd gives a client in a crowd either a frame with arbitrary plaintext that the host has
// signed, or arbitrary bytes. The client must not panic, must refuse what the host has not signed,
// and must not deliver more bytes than the plaintext has.
func FuzzCrowd(f *testing.F) {
	f.Add([]byte{byte(Told), 0, 0, 0, 6, 0, 0, 0, 2, '{', '}', 0}, []byte{9, 0}, true)
	f.Add(bytes.Repeat([]byte{0}, pieceSize), []byte{9}, true)
	f.Add([]byte{byte(Place), 0, 0, 0, 0}, []byte{9, 0, 0, 0, 0, 0, 0, 0, 0}, false)
	f.Fuzz(func(t *testing.T, plain, raw []byte, honest bool) {
		c, err1 := NewCrowd()
		client := &Session{client: true, limit: 1 << 16}
		body, err2 := c.Enter()
		if err := errors.Join(err1, err2, client.sit(body)); err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, crowdFront)
		frame[0] = byte(kindCrowd)
		head := bytes.Clone(frame[:crowdHead])
		frame = c.aead.Seal(frame, crowdNonce(head), plain, head)
		signature, err := c.signer.sign(signedTold(head, frame[crowdFront:]))
		if err != nil {
			t.Fatal(err)
		}
		if copy(frame[crowdHead:], signature); !honest {
			frame = raw
		}
		content, got, done, err := client.Open(frame)
		switch {
		case err == nil && !honest:
			t.Fatal("a frame that the host has not signed opens; want an error")
		case done && (content != Message && content != Heartbeat || len(got) > len(plain)):
			t.Fatalf("a frame opens as content %d with %d bytes; want a message or heartbeat, no longer than sent", content, len(got))
		}
	})
}

// TestClientsRefuseFaultyCrowds gives a client Place parcels and messages that a faulty host could
// send. The client must refuse them.
func TestClientsRefuseFaultyCrowds(t *testing.T) {
	c, err := NewCrowd()
	if err != nil {
		t.Fatal(err)
	}
	c.number = 300
	body, err := c.Enter()
	if err != nil || len(body) != placeTaken+2 {
		t.Fatalf("a place with the number 300 has %d bytes, %v; want %d", len(body), err, placeTaken+2)
	}
	for name, place := range map[string][]byte{
		"a number that begins with 0": slices.Concat(body[:placeTaken], []byte{0, 1}),
		"a number of 9 bytes":         append(bytes.Clone(body), 1, 1, 1, 1, 1, 1, 1),
		"no key for signatures":       body[:placeTaken-1],
		"a leave outside":             make([]byte, placeLeft),
		"a point off the curve":       slices.Concat(body[:33], make([]byte, 31), []byte{1}),
	} {
		if err := (&Session{client: true}).sit(place); err == nil {
			t.Errorf("%s: the client accepts the crowd; want an error", name)
		}
	}
	for _, generation := range []uint32{3, 4, 2, 5} {
		client := &Session{client: true, limit: 1 << 20}
		c.generation, c.number = 3, 300
		first, err1 := c.Tell([]byte("first"))
		c.generation = generation
		second, err2 := c.seal(Told, nil)
		if err := errors.Join(err1, err2, client.sit(body)); err != nil {
			t.Fatal(err)
		}
		_, _, _, err1 = client.Open(first[0])
		_, _, _, err2 = client.Open(second[0])
		if err1 != nil || (err2 == nil) != (generation == 3) { // with generation 4, it does not open with the present key
			t.Errorf("the client's result for the crowd's generation %d after 3 is %v, %v", generation, err1, err2)
		}
	}
}
