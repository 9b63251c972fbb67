package sealed

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/ahp"
)

// A crowd is a sealed host and two readers, which both receive the same shared bodies. It records
// the frames for each reader as a relay would see them.
type crowd struct {
	readers [2]*reader
	epochs  map[string]*Epoch // x1 and x2 are epochs of the same set x; y1 is an epoch of the set y
	bodies  map[string][]byte // first body of each message or part, by its text
	parts   map[string][]byte // key of each part, by its text
}

// A reader is a client of a crowd or hall, with the frames that the host has sent it and the
// messages in them.
type reader struct {
	client, host *Session
	frames       [][]byte
	sent         []string
}

// newCrowd returns a crowd whose host has sent a whole conversation to both readers: own messages,
// shared messages, and messages with shared parts. The function session returns the sessions for
// each reader.
func newCrowd(t testing.TB, session func(reader int) (client, host *Session)) *crowd {
	t.Helper()
	c := &crowd{epochs: map[string]*Epoch{}, bodies: map[string][]byte{}, parts: map[string][]byte{}}
	for i := range c.readers {
		c.readers[i] = &reader{}
		c.readers[i].client, c.readers[i].host = session(i)
	}
	for i, name := range []string{"x1", "y1", "x2"} {
		e, err := NewEpoch(uint32(i + 1))
		if err != nil {
			t.Fatal(err)
		}
		c.epochs[name] = e
	}
	c.own(t, "first")
	c.key(t, "x1")
	c.share(t, "x1", "a", "b")
	c.share(t, "x1", "c")
	c.own(t, "second")
	c.key(t, "y1")
	c.share(t, "y1", "d", strings.Repeat("long", pieceSize/2), "e")
	c.key(t, "x2")
	c.share(t, "x2", "f", "g", "h")
	c.own(t, "third")
	c.share(t, "y1", "i")
	c.join(t, "P", `{"id":%d,"result":%q}`)
	c.join(t, "Q", `{"jsonrpc":"2.0","id":%d,"result":%q}`)
	for _, r := range c.readers {
		r.seal(t, Close, AppendClose(ahp.CloseShuttingDown, ""))
	}
	return c
}

func (r *reader) seal(t testing.TB, content Content, body []byte) {
	t.Helper()
	frames, err := r.host.Seal(content, body)
	if err != nil {
		t.Fatal(err)
	}
	r.frames = append(r.frames, frames...)
}

// own seals a different message for each reader, in records.
func (c *crowd) own(t testing.TB, text string) {
	t.Helper()
	for i, r := range c.readers {
		message := fmt.Sprintf(`{"for":%d,"text":%q}`, i, text)
		r.seal(t, Message, []byte(message))
		r.sent = append(r.sent, message)
	}
}

func (c *crowd) key(t testing.TB, epoch string) {
	t.Helper()
	for _, r := range c.readers {
		r.seal(t, EpochKey, c.epochs[epoch].Key())
	}
}

// share sends the same messages to both readers in shared bodies, followed by a tag for each
// reader.
func (c *crowd) share(t testing.TB, epoch string, texts ...string) {
	t.Helper()
	var all [][]byte
	sums := sha256.New()
	for _, text := range texts {
		bodies, err := c.epochs[epoch].Seal([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bodies {
			sum := sha256.Sum256(b)
			sums.Write(sum[:])
		}
		c.bodies[text] = bodies[0]
		all = append(all, bodies...)
	}
	for _, r := range c.readers {
		r.host.Give(len(all))
		tag := r.host.Tag([32]byte(sums.Sum(nil)), r.host.out.count)
		r.frames = append(append(r.frames, all...), append([]byte{byte(kindTag)}, tag[:]...))
		r.sent = append(r.sent, texts...)
	}
}

// join sends a different message to each reader, in this form. All the messages contain the same
// part, in quotes, which both readers get in a shared body.
func (c *crowd) join(t testing.TB, part, form string) {
	t.Helper()
	quoted := strconv.Quote(part)
	key, bodies, err := SealPart([]byte(quoted))
	if err != nil || len(bodies) != 1 {
		t.Fatal(len(bodies), err)
	}
	c.bodies[part], c.parts[part] = bodies[0], key
	sum := sha256.Sum256(bodies[0])
	for i, r := range c.readers {
		r.host.Give(1)
		tag := r.host.Tag(sha256.Sum256(sum[:]), r.host.out.count)
		r.frames = append(r.frames, bodies[0], append([]byte{byte(kindTag)}, tag[:]...))
		message := fmt.Sprintf(form, i, part)
		r.seal(t, Joined, AppendJoined(key, []byte(message), strings.Index(message, quoted), len(quoted)))
		r.sent = append(r.sent, message)
	}
}

// tagOf returns the index of the n-th tag in the reader's frames, counted from 0.
func (r *reader) tagOf(n int) int {
	for i, f := range r.frames {
		if kind(f[0]) == kindTag {
			if n == 0 {
				return i
			}
			n--
		}
	}
	panic("no such tag")
}

// place returns the index of a message's first body in the first reader's frames.
func (c *crowd) place(text string) int {
	return slices.IndexFunc(c.readers[0].frames, func(f []byte) bool { return bytes.Equal(f, c.bodies[text]) })
}

// deliver opens frames at the reader. It returns the messages for the application, and whether the
// reader has received the close. It returns an error if the session accepts a frame after it has
// refused one.
func (r *reader) deliver(frames [][]byte) (got []string, whole bool, err error) {
	for _, frame := range frames {
		content, body, done, err := r.client.Open(bytes.Clone(frame))
		if err != nil {
			if _, _, _, again := r.client.Open(bytes.Clone(frame)); !errors.Is(again, err) {
				return got, true, fmt.Errorf("after the error %w, the session returns %v; want the same error", err, again)
			}
			return got, false, nil
		}
		for ; done; content, body, done = r.client.Next() {
			if content == Close {
				whole = true
			} else {
				got = append(got, string(body))
			}
		}
	}
	return got, whole, nil
}

// wantFound delivers changed frames to the reader. It fails if the reader accepts them up to the
// close, or if its application receives anything but the first of the sent messages, in order.
func (r *reader) wantFound(t interface {
	Helper()
	Fatalf(string, ...any)
}, frames [][]byte) {
	t.Helper()
	got, whole, err := r.deliver(frames)
	switch {
	case err != nil:
		t.Fatalf("delivering the frames: %v; want no error", err)
	case len(got) > len(r.sent) || !slices.Equal(got, r.sent[:len(got)]):
		t.Fatalf("the application received messages which were not sent; want only sent ones, in order")
	case whole:
		t.Fatalf("the change was not found; want an error")
	}
}

// forge returns a body with the head of a message's body and a different text. It uses the epoch's
// key, which each reader has.
func (c *crowd) forge(text, other string) []byte {
	body := c.bodies[text]
	var e *Epoch
	content := Message
	if key := c.parts[text]; key != nil {
		e, _ = newEpoch(partEpoch, [32]byte(key))
		content, other = Part, string(deflate([]byte(other)))
	} else {
		e = c.epochs[[]string{"x1", "y1", "x2"}[body[4]-1]]
	}
	var made []byte
	err := cut(content, []byte(other), bodyHead, func(frame []byte) error {
		copy(frame, body[:bodyHead])
		made = e.aead.Seal(frame[:bodyHead], bodyNonce(body[:bodyHead]), frame[bodyHead:], body[:bodyHead])
		return nil
	})
	if err != nil {
		panic(err)
	}
	return made
}

// A sharedLie is a way in which a relay changes the frames for the first reader. The second reader
// helps it: the relay also has that reader's frames, and the keys of all epochs.
type sharedLie struct {
	name   string
	change func(c *crowd, f, second [][]byte) [][]byte
}

// without returns frames without the n frames at index from.
func without(f [][]byte, from, n int) [][]byte { return slices.Concat(f[:from], f[from+n:]) }

func exchange(f [][]byte, i, j int) [][]byte {
	f[i], f[j] = f[j], f[i]
	return f
}

var sharedLies = []sharedLie{
	{"drops a body", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("a"), 1) }},
	{"drops the last body before a tag", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("b"), 1) }},
	{"drops a body and its tag", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("c"), 2) }},
	{"drops a tag", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.readers[0].tagOf(0), 1) }},
	{"drops all bodies and tags", func(c *crowd, f, _ [][]byte) [][]byte {
		return slices.DeleteFunc(f, func(f []byte) bool { return kind(f[0]) != kindRecord })
	}},
	{"drops all bodies", func(c *crowd, f, _ [][]byte) [][]byte {
		return slices.DeleteFunc(f, func(f []byte) bool { return kind(f[0]) == kindBody })
	}},
	{"drops the last bodies before the close", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("i"), 2) }},
	{"withholds the tail", func(c *crowd, f, _ [][]byte) [][]byte { return f[:c.place("i")] }},
	{"withholds the tag at the tail", func(c *crowd, f, _ [][]byte) [][]byte { return f[:c.place("i")+1] }},
	{"drops an epoch's key", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, 1, 1) }},
	{"swaps bodies", func(c *crowd, f, _ [][]byte) [][]byte { return exchange(f, c.place("a"), c.place("b")) }},
	{"swaps bodies of different tags", func(c *crowd, f, _ [][]byte) [][]byte { return exchange(f, c.place("b"), c.place("c")) }},
	{"swaps tags", func(c *crowd, f, _ [][]byte) [][]byte {
		return exchange(f, c.readers[0].tagOf(0), c.readers[0].tagOf(1))
	}},
	{"swaps whole deliveries", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("a")
		return slices.Concat(f[:i], f[i+3:i+5], f[i:i+3], f[i+5:])
	}},
	{"swaps pieces of a long message", func(c *crowd, f, _ [][]byte) [][]byte { return exchange(f, c.place("d")+1, c.place("d")+2) }},
	{"drops a piece of a long message", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("d")+1, 1) }},
	{"repeats a body", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("a")
		return at(f, i, f[i], f[i])
	}},
	{"repeats a delivery", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("c")
		return slices.Concat(f[:i+2], f[i:i+2], f[i+2:])
	}},
	{"repeats a tag", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.readers[0].tagOf(1)
		return at(f, i, f[i], f[i])
	}},
	{"divides a delivery", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.readers[0].tagOf(0)
		return at(f, c.place("a"), f[c.place("a")], f[i])
	}},
	{"joins deliveries", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.readers[0].tagOf(0), 1) }},
	{"delays a delivery behind a record", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("c")
		return slices.Concat(f[:i], f[i+2:i+3], f[i:i+2], f[i+3:])
	}},
	{"delivers before a record", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("f")
		third := i + 4
		return slices.Concat(f[:third], f[third+1:third+3], f[third:third+1], f[third+3:])
	}},
	{"puts a record between a body and its tag", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("c")
		return slices.Concat(f[:i+1], f[i+2:i+3], f[i+1:i+2], f[i+3:])
	}},
	{"splices a body of a different set", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("f"), c.bodies["d"]) }},
	{"splices a body of an old epoch", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("f"), c.bodies["a"]) }},
	{"splices a body of a later epoch", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("d"), c.bodies["f"]) }},
	{"splices a body before its epoch's key", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("a"), c.bodies["f"]) }},
	{"splices a body of the same epoch", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("c"), c.bodies["a"]) }},
	{"replays an old epoch's delivery", func(c *crowd, f, _ [][]byte) [][]byte {
		i, j := c.place("a"), c.place("f")
		return slices.Concat(f[:j], f[i:i+3], f[j:])
	}},
	{"changes an epoch", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("a"), flipped(c.bodies["a"], 4)) }},
	{"changes a number", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("a"), flipped(c.bodies["a"], 8)) }},
	{"changes a body", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("a"), flipped(c.bodies["a"], 12)) }},
	{"changes a body's own tag", func(c *crowd, f, _ [][]byte) [][]byte {
		return at(f, c.place("a"), flipped(c.bodies["a"], len(c.bodies["a"])-1))
	}},
	{"truncates a body", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("a"), c.bodies["a"][:bodyHead+tagSize]) }},
	{"lengthens a body", func(c *crowd, f, _ [][]byte) [][]byte {
		return at(f, c.place("a"), append(bytes.Clone(c.bodies["a"]), make([]byte, pieceSize)...))
	}},
	{"changes a tag", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.readers[0].tagOf(0)
		return at(f, i, flipped(f[i], 7))
	}},
	{"truncates a tag", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.readers[0].tagOf(0)
		return at(f, i, f[i][:tagged-1])
	}},
	{"delivers the second reader's tag", func(c *crowd, f, second [][]byte) [][]byte {
		i := c.readers[0].tagOf(0)
		return at(f, i, second[i])
	}},
	{"delivers the second reader's bodies and tags", func(c *crowd, f, second [][]byte) [][]byte {
		return slices.Concat(f[:2], second[2:])
	}},
	{"delivers the second reader's key of an epoch", func(c *crowd, f, second [][]byte) [][]byte { return at(f, 1, second[1]) }},
	{"forges a body with a reader's help", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("a"), c.forge("a", "x")) }},
	{"forges a body of an old epoch with a reader's help", func(c *crowd, f, _ [][]byte) [][]byte {
		return at(f, c.place("g"), c.forge("a", "g"))
	}},
	{"adds a forged body", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("c")
		return at(f, i, f[i], c.forge("c", "x"))
	}},
	{"delivers a forged body alone", func(c *crowd, f, second [][]byte) [][]byte {
		i := c.place("c")
		return at(f, i, c.forge("c", "x"), second[c.readers[1].tagOf(1)])
	}},
	{"gives a shared body as a record", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("a")
		return at(f, i, append([]byte{byte(kindRecord)}, f[i][bodyHead:]...))
	}},
	{"drops a part", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("P"), 1) }},
	{"drops a part and its tag", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("P"), 2) }},
	{"drops a part and its message", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("P"), 3) }},
	{"drops a part's tag", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("P")+1, 1) }},
	{"gives a part as an epoch's body", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("P"), flipped(c.bodies["P"], 4)) }},
	{"gives an epoch's body as a part", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("a"), flipped(c.bodies["a"], 4)) }},
	{"gives the key of one part with the other", func(c *crowd, f, _ [][]byte) [][]byte {
		return exchange(f, c.place("P")+2, c.place("Q")+2)
	}},
	{"drops a part's message", func(c *crowd, f, _ [][]byte) [][]byte { return without(f, c.place("P")+2, 1) }},
	{"gives a part behind its message", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("P")
		return slices.Concat(f[:i], f[i+2:i+3], f[i:i+2], f[i+3:])
	}},
	{"repeats a part", func(c *crowd, f, _ [][]byte) [][]byte {
		i := c.place("P")
		return slices.Concat(f[:i+2], f[i:i+2], f[i+2:])
	}},
	{"swaps parts", func(c *crowd, f, _ [][]byte) [][]byte { return exchange(f, c.place("P"), c.place("Q")) }},
	{"gives the second reader's message with a part", func(c *crowd, f, second [][]byte) [][]byte {
		i := c.place("P") + 2
		return at(f, i, second[i])
	}},
	{"forges a part with a reader's help", func(c *crowd, f, _ [][]byte) [][]byte { return at(f, c.place("P"), c.forge("P", "x")) }},
	{"gives a record as a shared body", func(c *crowd, f, _ [][]byte) [][]byte {
		return at(f, 0, slices.Concat([]byte{byte(kindBody), 0, 0, 0, 1, 0, 0, 0, 0}, f[0][1:]))
	}},
}

// handshaken returns a function for newCrowd or newHall which performs a real handshake for each
// reader.
func handshaken(t testing.TB) func(int) (client, host *Session) {
	c := newCast(t)
	return func(i int) (client, host *Session) {
		icfg, rcfg := c.configs([]*Device{c.device, c.other}[i])
		client, arrival, _, err := handshake(icfg, rcfg, honest)
		if err != nil {
			t.Fatal(err)
		}
		return client, arrival.Session
	}
}

// TestLiesAboutSharedBodiesAreFound delivers frames with each of sharedLies to a reader. The reader
// must refuse them.
func TestLiesAboutSharedBodiesAreFound(t *testing.T) {
	for _, lie := range sharedLies {
		t.Run(lie.name, func(t *testing.T) {
			c := newCrowd(t, handshaken(t))
			r := c.readers[0]
			r.wantFound(t, lie.change(c, slices.Clone(r.frames), c.readers[1].frames))
		})
	}
}

// TestHonestBodiesAreDelivered delivers unchanged frames to both readers. Each must receive all
// messages.
func TestHonestBodiesAreDelivered(t *testing.T) {
	c := newCrowd(t, handshaken(t))
	for i, r := range c.readers {
		got, whole, err := r.deliver(r.frames)
		if err != nil || !whole || !slices.Equal(got, r.sent) {
			t.Errorf("reader %d opens %d messages, whole %v, %v; want %d, and true", i, len(got), whole, err, len(r.sent))
		}
	}
}

// TestRandomLiesAboutSharedBodiesAreFound changes the frames for a reader at random, also with
// frames of the second reader and forged bodies. The reader must refuse the frames.
func TestRandomLiesAboutSharedBodiesAreFound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(rt, "keys")
		c := newCrowd(t, func(i int) (client, host *Session) {
			in, err1 := newHalf([32]byte(digest("test", seed, []byte{byte(i), 0})))
			out, err2 := newHalf([32]byte(digest("test", seed, []byte{byte(i), 1})))
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			return &Session{client: true, limit: 1 << 20, in: in, out: out}, &Session{limit: 1 << 20, in: out, out: in}
		})
		r := c.readers[0]
		frames := slices.Clone(r.frames)
		pool := slices.Concat(r.frames, c.readers[1].frames)
		for text := range c.bodies {
			if len(text) == 1 {
				pool = append(pool, c.forge(text, "forged"))
			}
		}
		slices.SortFunc(pool, bytes.Compare)
		for range rapid.IntRange(1, 5).Draw(rt, "lies") {
			frames = manipulate(rt, frames, pool, 6)
		}
		n := len(r.frames)
		if len(frames) >= n && slices.EqualFunc(frames[:n], r.frames, bytes.Equal) {
			rt.Skip("nothing is changed")
		}
		r.wantFound(rt, frames)
	})
}

// A pair is a client and a host with fixed keys. The client has received the key of the epoch.
type pair struct {
	*testing.T
	client, host *Session
	epoch        *Epoch
}

func newPair(t *testing.T) *pair {
	t.Helper()
	half, err1 := newHalf([32]byte{1})
	e, err2 := newEpoch(9, [32]byte{2})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	p := &pair{T: t, client: &Session{client: true, limit: 1 << 20, in: half}, host: &Session{out: half}, epoch: e}
	key, err := p.host.Seal(EpochKey, e.Key())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.opens(key...); err != nil {
		t.Fatal(err)
	}
	return p
}

// opens opens frames at the client, and returns the messages.
func (p *pair) opens(frames ...[]byte) (got []string, err error) {
	for _, frame := range frames {
		_, body, done, err := p.client.Open(bytes.Clone(frame))
		if err != nil {
			return got, err
		}
		for ; done; _, body, done = p.client.Next() {
			got = append(got, string(body))
		}
	}
	return got, nil
}

// cut cuts a parcel into pieces, and returns the frames that seal makes of them.
func (p *pair) cut(content Content, body []byte, head int, seal func(frame []byte) []byte) (frames [][]byte) {
	p.Helper()
	if err := cut(content, body, head, func(frame []byte) error {
		frames = append(frames, seal(frame))
		return nil
	}); err != nil {
		p.Fatal(err)
	}
	return frames
}

// bodies returns a parcel sealed as shared bodies.
func (p *pair) bodies(content Content, body []byte) [][]byte {
	p.Helper()
	return p.cut(content, body, bodyHead, func(frame []byte) []byte {
		frame[0] = byte(kindBody)
		frame[4], frame[8] = 9, byte(p.epoch.count)
		p.epoch.count++
		return p.epoch.aead.Seal(frame[:bodyHead], bodyNonce(frame[:bodyHead]), frame[bodyHead:], frame[:bodyHead])
	})
}

// partKey is the key of the parts that a pair's host sends.
var partKey = bytes.Repeat([]byte{3}, 32)

// part returns a parcel sealed as the bodies of a part.
func (p *pair) part(content Content, body []byte) [][]byte {
	p.Helper()
	e, err := newEpoch(partEpoch, [32]byte(partKey))
	if err != nil {
		p.Fatal(err)
	}
	bodies, err := e.seal(content, body)
	if err != nil {
		p.Fatal(err)
	}
	return bodies
}

// joined returns a Joined parcel with the key of a part, as a record.
func (p *pair) joined(key []byte) [][]byte {
	p.Helper()
	frames, err := p.host.Seal(Joined, AppendJoined(key, []byte("message"), 1, 1))
	if err != nil {
		p.Fatal(err)
	}
	return frames
}

// randomBytes returns n bytes that cannot be compressed.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// records returns a message sealed as records.
func (p *pair) records(body []byte) [][]byte {
	p.Helper()
	frames, err := p.host.Seal(Message, body)
	if err != nil {
		p.Fatal(err)
	}
	return frames
}

// tag returns the host's valid tag for bodies that follow n records.
func (p *pair) tag(n uint64, bodies ...[]byte) []byte {
	all := sha256.New()
	for _, b := range bodies {
		sum := sha256.Sum256(b)
		all.Write(sum[:])
	}
	p.host.Give(len(bodies))
	tag := p.host.Tag([32]byte(all.Sum(nil)), n)
	return append([]byte{byte(kindTag)}, tag[:]...)
}

// TestHostKeepsToSharedForms gives a client frames with valid tags that a faulty host could send,
// each in a form which docs/sealed.md forbids. The client must refuse them and deliver nothing. A
// permitted form must be delivered.
func TestHostKeepsToSharedForms(t *testing.T) {
	long := bytes.Repeat([]byte("x"), pieceSize+100)
	one := func(content Content, body []byte) func(p *pair) [][]byte {
		return func(p *pair) [][]byte {
			bodies := p.bodies(content, body)
			return append(bodies, p.tag(1, bodies...))
		}
	}
	joined := func(content Content, body, key []byte) func(p *pair) [][]byte {
		return func(p *pair) [][]byte {
			bodies := p.part(content, body)
			return append(append(bodies, p.tag(1, bodies...)), p.joined(key)...)
		}
	}
	forms := map[string]func(p *pair) [][]byte{
		"a tag for no body": func(p *pair) [][]byte { return [][]byte{p.tag(1)} },
		"a compressed body": one(packed, deflate([]byte("message"))),
		"a heartbeat":       one(Heartbeat, make([]byte, 8)),
		"a close":           one(Close, AppendClose(ahp.CloseForbidden, "")),
		"a key of an epoch": one(EpochKey, make([]byte, 36)),
		"a joined message":  one(Joined, AppendJoined(partKey, []byte("message"), 1, 1)),
		"a part":            one(Part, deflate([]byte("a"))),
		"the epoch of parts": func(p *pair) [][]byte {
			frames, err := p.host.Seal(EpochKey, make([]byte, 36))
			if err != nil {
				p.Fatal(err)
			}
			return frames
		},
		"a damaged part":               joined(Part, []byte("message"), partKey),
		"an empty part":                joined(Part, deflate(nil), partKey),
		"a message in place of a part": joined(Message, []byte("message"), partKey),
		"a part with a different key":  joined(Part, deflate([]byte("a")), make([]byte, 32)),
		"a part without its end": func(p *pair) [][]byte {
			bodies := p.part(Part, deflate(randomBytes(pieceSize+100)))
			return append(bodies[:1:1], append([][]byte{p.tag(1, bodies[0])}, p.joined(partKey)...)...)
		},
		"two parts": func(p *pair) [][]byte {
			bodies := append(p.part(Part, deflate([]byte("a"))), p.part(Part, deflate([]byte("b")))...)
			return append(bodies, p.tag(1, bodies...))
		},
		"a part inside of a message": func(p *pair) [][]byte {
			front, part := p.bodies(Message, long)[0], p.part(Part, deflate([]byte("a")))[0]
			return [][]byte{front, part, p.tag(1, front, part)}
		},
		"a part in a record": func(p *pair) [][]byte {
			frames, err := p.host.Seal(Part, deflate([]byte("message")))
			if err != nil {
				p.Fatal(err)
			}
			return frames
		},
		"a joined message without a part": func(p *pair) [][]byte {
			return p.joined(partKey)
		},
		"a part outside of its message": func(p *pair) [][]byte {
			bodies := p.part(Part, deflate([]byte("a")))
			bodies = append(bodies, p.tag(1, bodies...))
			frames, err := p.host.Seal(Joined, append(bytes.Clone(partKey), 0, 0, 0, 9, 'x'))
			if err != nil {
				p.Fatal(err)
			}
			return append(bodies, frames...)
		},
		"a body in a record": func(p *pair) [][]byte {
			bodies := p.bodies(Message, long)
			rest := p.cut(Message, long, 1, func(frame []byte) []byte {
				frame[0] = byte(kindRecord)
				return frame
			})[1]
			tag := p.tag(1, bodies[0])
			nonce, err := p.host.out.next(len(rest))
			if err != nil {
				p.Fatal(err)
			}
			return [][]byte{bodies[0], tag, p.host.out.aead.Seal(rest[:1], nonce, rest[1:], p.host.out.recordAD())}
		},
		"a record in a body": func(p *pair) [][]byte {
			first := p.records(long)[0]
			rest := p.bodies(Message, long)[1]
			return [][]byte{first, rest, p.tag(2, rest)}
		},
		"too many bodies": func(p *pair) [][]byte {
			p.client.in.bodies = maxRecords
			return one(Message, []byte("message"))(p)
		},
	}
	for name, frames := range forms {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			if got, err := p.opens(frames(p)...); err == nil || len(got) > 0 {
				t.Errorf("the client accepts %d messages: %v; want an error", len(got), err)
			}
		})
	}
	p := newPair(t)
	bodies := p.bodies(Message, long)
	frames := [][]byte{bodies[0], p.tag(1, bodies[0]), bodies[1], p.tag(1, bodies[1])}
	if got, err := p.opens(append(frames, p.records([]byte("own"))...)...); err != nil || !slices.Equal(got, []string{string(long), "own"}) {
		t.Errorf("a message with two tags: the client accepts %d messages, %v; want the shared message and its own", len(got), err)
	}
	p = newPair(t)
	whole := randomBytes(pieceSize + 100)
	bodies = p.part(Part, deflate(whole))
	frames = append([][]byte{bodies[0], p.tag(1, bodies[0]), bodies[1], p.tag(1, bodies[1])}, p.joined(partKey)...)
	if got, err := p.opens(frames...); err != nil || !slices.Equal(got, []string{"m" + string(whole) + "ssage"}) {
		t.Errorf("a part under two tags: the client accepts %d messages, %v", len(got), err)
	}
	p.host.Give(maxRecords)
	if _, err := p.host.Seal(Message, nil); !errors.Is(err, errSpent) {
		t.Errorf("Seal after too many bodies = %v; want errSpent", err)
	}
}

// FuzzShared gives a client a shared body with arbitrary plaintext, followed either by the host's
// valid tag or by arbitrary bytes. The client must not panic, must not deliver a message without
// the valid tag, and must not deliver more bytes than the plaintext has.
func FuzzShared(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, '{', '}', 0}, []byte{7, 0, 0, 0, 9, 0, 0, 0, 0}, true)
	f.Add(bytes.Repeat([]byte{0}, pieceSize), []byte{8}, true)
	f.Add([]byte{byte(EpochKey), 0, 0, 0, 0}, []byte{7, 0, 0, 0, 9, 0, 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, plain, raw []byte, honest bool) {
		half, err1 := newHalf([32]byte{1})
		e, err2 := newEpoch(9, [32]byte{2})
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		client, host := &Session{client: true, limit: 1 << 16, in: half}, &Session{out: half}
		key, err := host.Seal(EpochKey, e.Key())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := client.Open(key[0]); err != nil {
			t.Fatal(err)
		}
		head := []byte{byte(kindBody), 0, 0, 0, 9, 0, 0, 0, 0}
		body := e.aead.Seal(bytes.Clone(head), bodyNonce(head), plain, head)
		sum := sha256.Sum256(body)
		tag := host.Tag(sha256.Sum256(sum[:]), host.out.count)
		frames := [][]byte{body, append([]byte{byte(kindTag)}, tag[:]...)}
		if !honest {
			frames = [][]byte{body, raw, append([]byte{byte(kindTag)}, raw...)}
		}
		for _, frame := range frames {
			content, got, done, err := client.Open(frame)
			switch {
			case err != nil:
				return
			case done && !honest:
				t.Fatal("a message without the host's tag opens; want an error")
			case done && (content != Message || len(got) > len(plain)):
				t.Fatalf("a frame opens as content %d with %d bytes; want a message, no longer than sent", content, len(got))
			}
		}
	})
}

// FuzzPart gives a client a part with arbitrary plaintext and a valid tag, and then a Joined parcel
// with arbitrary content behind the key. The client must not panic, and must not deliver more bytes
// than its limit.
func FuzzPart(f *testing.F) {
	f.Add([]byte{byte(Part), 0, 0, 0, 2, 3, 0, 0}, []byte{0, 0, 0, 0, '7'})
	f.Add([]byte{byte(Joined), 0, 0, 0, 0}, []byte{0, 0, 0, 1, '{', '}'})
	for _, text := range []string{"{}", "[1]"} {
		small := deflate([]byte(text))
		plain := binary.BigEndian.AppendUint32([]byte{byte(Part)}, uint32(len(small)))
		plain = append(plain, small...)
		f.Add(append(plain, make([]byte, Padded(len(plain))-len(plain))...), []byte{0, 0, 0, 0, '7'})
	}
	f.Fuzz(func(t *testing.T, plain, rest []byte) {
		half, err1 := newHalf([32]byte{1})
		e, err2 := newEpoch(partEpoch, [32]byte(partKey))
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		client, host := &Session{client: true, limit: 1 << 16, in: half}, &Session{out: half}
		head := []byte{byte(kindBody), 0, 0, 0, 0, 0, 0, 0, 0}
		body := e.aead.Seal(bytes.Clone(head), bodyNonce(head), plain, head)
		sum := sha256.Sum256(body)
		host.Give(1)
		tag := host.Tag(sha256.Sum256(sum[:]), 0)
		joined, err := host.Seal(Joined, append(bytes.Clone(partKey), rest...))
		if err != nil {
			t.Fatal(err)
		}
		for _, frame := range append([][]byte{body, append([]byte{byte(kindTag)}, tag[:]...)}, joined...) {
			content, got, done, err := client.Open(frame)
			switch {
			case err != nil:
				return
			case done && (content != Message || len(got) > client.limit+100):
				t.Fatalf("opens as content %d with %d bytes", content, len(got))
			}
		}
	})
}
