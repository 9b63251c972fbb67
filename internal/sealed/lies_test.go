package sealed

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/ahp"
)

// A talk is a sealed connection after its handshake, on which both ends have sent a conversation.
// It records the frames as a relay would see them.
type talk struct {
	client, host *Session
	handshake    [][]byte
	frames       [2][][]byte // by direction: toHost, toClient
	sent         [2][]string // the messages in frames
}

// Directions of a talk, as indices.
const (
	toHost = iota
	toClient
)

// A cast holds the keys for talks: two devices and a host.
type cast struct {
	device, other *Device
	host          Secret
	name          string
}

func newCast(t testing.TB) cast {
	t.Helper()
	device, err1 := NewDevice()
	other, err2 := NewDevice()
	host, err3 := NewSecret()
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return cast{device, other, host, "laptop"}
}

// handshake performs a handshake between a client and a host. Each frame passes through the
// function relay, which may change it. It returns both ends and the unchanged frames, or the first
// error.
func handshake(cfg InitiatorConfig, rcfg ResponderConfig, relay func(n int, frame []byte) []byte) (client *Session, arrival *Arrival, frames [][]byte, err error) {
	i, frame, err := NewInitiator(cfg)
	r := NewResponder(rcfg)
	for n := 0; err == nil; n++ {
		frames = append(frames, bytes.Clone(frame))
		if frame = relay(n, frame); n%2 == 0 {
			if frame, arrival, err = r.Read(frame); arrival != nil || err != nil {
				return client, arrival, frames, err
			}
		} else {
			frame, client, err = i.Read(frame)
		}
	}
	return client, arrival, frames, err
}

func honest(_ int, frame []byte) []byte { return frame }

// configs returns configurations for a handshake between device and the host.
func (c *cast) configs(device *Device) (InitiatorConfig, ResponderConfig) {
	key := c.host.Public()
	return InitiatorConfig{Host: c.name, HostKey: &key, Device: device, Limit: 1 << 20, Greeting: Greeting{Name: "x", Window: 30}},
		ResponderConfig{Host: c.name, Secret: c.host, Limit: 1 << 20, Code: func() (Code, bool) { return Code{}, false }}
}

// talk performs a handshake for device and returns a talk: both ends have sent six messages and a
// close. The third message in each direction is so long that it has several records.
func (c *cast) talk(t testing.TB, device *Device, about string) *talk {
	t.Helper()
	icfg, rcfg := c.configs(device)
	client, arrival, frames, err := handshake(icfg, rcfg, honest)
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{client: client, host: arrival.Session, handshake: frames}
	for n := range 6 {
		size := 10
		if n == 2 {
			size = 3 * pieceSize
		}
		for d, from := range []*Session{client, arrival.Session} {
			message := fmt.Sprintf(`{"about":%q,"n":%d,"to":%d,"text":%q}`, about, n, d, strings.Repeat("ab", size))
			sealed, err := from.Seal(Message, []byte(message))
			if err != nil {
				t.Fatal(err)
			}
			k.frames[d], k.sent[d] = append(k.frames[d], sealed...), append(k.sent[d], message)
		}
	}
	for d, from := range []*Session{client, arrival.Session} {
		last, err := from.Seal(Close, AppendClose(ahp.CloseShuttingDown, "done"))
		if err != nil {
			t.Fatal(err)
		}
		k.frames[d] = append(k.frames[d], last...)
	}
	return k
}

// deliver opens frames at the receiver for direction d. It returns the messages for the
// application, and whether the receiver has received the close. It returns an error if the session
// accepts a frame after it has refused one.
func (k *talk) deliver(d int, frames [][]byte) (got []string, whole bool, err error) {
	to := []*Session{k.host, k.client}[d]
	for _, frame := range frames {
		content, body, done, err := to.Open(bytes.Clone(frame))
		switch {
		case err != nil:
			if _, _, _, again := to.Open(bytes.Clone(frame)); !errors.Is(again, err) {
				return got, true, fmt.Errorf("after the error %w, the session returns %v; want the same error", err, again)
			}
			return got, false, nil
		case !done:
		case content == Message:
			got = append(got, string(body))
		case content == Close:
			whole = true
		}
	}
	return got, whole, nil
}

// wantFound delivers changed frames to the receiver for direction d. It fails if the receiver
// accepts them up to the close, or if its application receives anything but the first of the sent
// messages, in order.
func (k *talk) wantFound(t interface {
	Helper()
	Fatalf(string, ...any)
}, d int, frames [][]byte) {
	t.Helper()
	got, whole, err := k.deliver(d, frames)
	if err != nil {
		t.Fatalf("delivering the frames: %v; want no error", err)
	}
	if len(got) > len(k.sent[d]) || !slices.Equal(got, k.sent[d][:len(got)]) {
		t.Fatalf("the application received messages which were not sent; want only sent ones, in order")
	}
	if whole {
		t.Fatalf("the change was not found; want an error")
	}
}

// A recordLie is a way in which a relay changes the frames in one direction.
type recordLie struct {
	name   string
	change func(l *liar, f [][]byte) [][]byte
}

// A liar holds what a lying relay can take frames from: other conversations, in the same direction.
type liar struct {
	d       int
	reverse [][]byte // frames in the opposite direction
	earlier [][]byte // frames of an earlier talk between the same device and host
	other   [][]byte // frames of a talk with a different device
	foreign [][]byte // frames of a talk with a different host
}

// at returns frames with the frame at index i replaced by the frames by.
func at(f [][]byte, i int, by ...[]byte) [][]byte {
	return slices.Concat(f[:i], by, f[i+1:])
}

// flipped returns a copy of a frame with a changed bit in byte i.
func flipped(frame []byte, i int) []byte {
	frame = bytes.Clone(frame)
	frame[i] ^= 1
	return frame
}

var recordLies = []recordLie{
	{"drops the first record", func(_ *liar, f [][]byte) [][]byte { return f[1:] }},
	{"drops a record in the middle", func(_ *liar, f [][]byte) [][]byte { return at(f, 1) }},
	{"drops a piece of a long message", func(_ *liar, f [][]byte) [][]byte { return at(f, 4) }},
	{"drops the whole long message", func(_ *liar, f [][]byte) [][]byte { return slices.Concat(f[:2], f[len(f)-4:]) }},
	{"withholds the tail", func(_ *liar, f [][]byte) [][]byte { return f[:4] }},
	{"withholds the last message and the close", func(_ *liar, f [][]byte) [][]byte { return f[:len(f)-2] }},
	{"withholds the close", func(_ *liar, f [][]byte) [][]byte { return f[:len(f)-1] }},
	{"withholds the last message only", func(_ *liar, f [][]byte) [][]byte { return at(f, len(f)-2) }},
	{"withholds everything", func(_ *liar, f [][]byte) [][]byte { return nil }},
	{"repeats a record", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, f[1], f[1]) }},
	{"repeats the first record later", func(_ *liar, f [][]byte) [][]byte { return at(f, 3, f[3], f[0]) }},
	{"replaces a record by an earlier one", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, f[0]) }},
	{"swaps neighbours", func(_ *liar, f [][]byte) [][]byte { return slices.Concat([][]byte{f[1], f[0]}, f[2:]) }},
	{"swaps pieces of a message", func(_ *liar, f [][]byte) [][]byte { return slices.Concat(f[:3], [][]byte{f[4], f[3]}, f[5:]) }},
	{"delays a record behind the others", func(_ *liar, f [][]byte) [][]byte { return append(slices.Clone(f[1:]), f[0]) }},
	{"moves the close forward", func(_ *liar, f [][]byte) [][]byte { return slices.Concat([][]byte{f[0], f[len(f)-1]}, f[1:len(f)-1]) }},
	{"truncates a record", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, f[1][:len(f[1])-1]) }},
	{"truncates a record to its kind", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, f[1][:1]) }},
	{"truncates a record to its tag", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, f[1][:1+tagSize]) }},
	{"lengthens a record", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, append(bytes.Clone(f[1]), 0)) }},
	{"sends an empty frame", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, nil, f[1]) }},
	{"sends a frame of zeros", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, make([]byte, 64), f[1]) }},
	{"sends a record of its own", func(_ *liar, f [][]byte) [][]byte {
		return at(f, 1, append([]byte{byte(kindRecord)}, make([]byte, 48)...), f[1])
	}},
	{"sends a frame that is too long", func(_ *liar, f [][]byte) [][]byte {
		return at(f, 1, append([]byte{byte(kindRecord)}, make([]byte, FrameSize)...), f[1])
	}},
	{"joins two records", func(_ *liar, f [][]byte) [][]byte { return slices.Concat([][]byte{slices.Concat(f[0], f[1])}, f[2:]) }},
	{"joins two records without the second kind", func(_ *liar, f [][]byte) [][]byte {
		return slices.Concat([][]byte{slices.Concat(f[0], f[1][1:])}, f[2:])
	}},
	{"divides a record", func(_ *liar, f [][]byte) [][]byte {
		return at(f, 1, f[1][:20], append([]byte{byte(kindRecord)}, f[1][20:]...))
	}},
	{"changes the kind to a handshake's", func(_ *liar, f [][]byte) [][]byte {
		return at(f, 1, append([]byte{byte(kindFirst)}, f[1][1:]...))
	}},
	{"changes the content", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, flipped(f[1], 1)) }},
	{"changes the length", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, flipped(f[1], 5)) }},
	{"changes the body", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, flipped(f[1], 20)) }},
	{"changes the padding", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, flipped(f[1], len(f[1])-tagSize-1)) }},
	{"changes the tag", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, flipped(f[1], len(f[1])-1)) }},
	{"changes the middle of a long message", func(_ *liar, f [][]byte) [][]byte { return at(f, 3, flipped(f[3], pieceSize/2)) }},
	{"exchanges tags", func(_ *liar, f [][]byte) [][]byte {
		n := len(f[0]) - tagSize
		return at(f, 0, slices.Concat(f[0][:n], f[1][len(f[1])-tagSize:]))
	}},
	{"reflects a record", func(l *liar, f [][]byte) [][]byte { return at(f, 1, l.reverse[1]) }},
	{"reflects the first record", func(l *liar, f [][]byte) [][]byte { return at(f, 0, l.reverse[0]) }},
	{"reflects everything", func(l *liar, _ [][]byte) [][]byte { return l.reverse }},
	{"inserts a reflected record", func(l *liar, f [][]byte) [][]byte { return at(f, 2, l.reverse[0], f[2]) }},
	{"splices a record of an earlier connection", func(l *liar, f [][]byte) [][]byte { return at(f, 1, l.earlier[1]) }},
	{"replays an earlier connection", func(l *liar, _ [][]byte) [][]byte { return l.earlier }},
	{"continues with an earlier connection", func(l *liar, f [][]byte) [][]byte { return slices.Concat(f[:2], l.earlier[2:]) }},
	{"closes with an earlier connection's close", func(l *liar, f [][]byte) [][]byte { return at(f, len(f)-1, l.earlier[len(f)-1]) }},
	{"splices a record of a different person", func(l *liar, f [][]byte) [][]byte { return at(f, 1, l.other[1]) }},
	{"delivers a different person's connection", func(l *liar, _ [][]byte) [][]byte { return l.other }},
	{"splices a record of a different host", func(l *liar, f [][]byte) [][]byte { return at(f, 1, l.foreign[1]) }},
	{"delivers a different host's connection", func(l *liar, _ [][]byte) [][]byte { return l.foreign }},
	{"sends a handshake message again", func(l *liar, f [][]byte) [][]byte { return at(f, 1, []byte{byte(kindAskKey)}, f[1]) }},
	{"sends text in place of a record", func(_ *liar, f [][]byte) [][]byte { return at(f, 1, []byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) }},
}

// TestLyingRelayIsFound delivers frames with each of recordLies, in both directions. The receiver
// must refuse them.
func TestLyingRelayIsFound(t *testing.T) {
	c := newCast(t)
	foreign := newCast(t)
	for _, lie := range recordLies {
		for d := range 2 {
			t.Run(fmt.Sprintf("%s/%d", lie.name, d), func(t *testing.T) {
				k := c.talk(t, c.device, "this")
				l := &liar{
					d: d, reverse: k.frames[1-d], earlier: c.talk(t, c.device, "earlier").frames[d],
					other: c.talk(t, c.other, "other").frames[d], foreign: foreign.talk(t, c.device, "foreign").frames[d],
				}
				k.wantFound(t, d, lie.change(l, slices.Clone(k.frames[d])))
			})
		}
	}
}

// TestHonestRelayIsNotAccused delivers unchanged frames in both directions. Each receiver must get
// all messages.
func TestHonestRelayIsNotAccused(t *testing.T) {
	c := newCast(t)
	k := c.talk(t, c.device, "this")
	for d := range 2 {
		got, whole, err := k.deliver(d, k.frames[d])
		if err != nil || !whole || !slices.Equal(got, k.sent[d]) {
			t.Errorf("in direction %d, %d messages are opened, whole %v, %v; want %d, and true", d, len(got), whole, err, len(k.sent[d]))
		}
	}
}

// manipulate returns frames after a random change. The change is drawn from ways 0 to last. Frames
// to insert come from pool.
func manipulate(t *rapid.T, frames, pool [][]byte, last int) [][]byte {
	i := rapid.IntRange(0, len(frames)).Draw(t, "place")
	switch how := rapid.IntRange(0, last).Draw(t, "how"); {
	case how == 0:
		frames = slices.Insert(frames, i, rapid.SampledFrom(pool).Draw(t, "frame"))
	case i == len(frames):
	case how == 1:
		frames = slices.Delete(frames, i, i+1)
	case how == 2:
		frames[i] = rapid.SampledFrom(pool).Draw(t, "frame")
	case how == 3:
		j := rapid.IntRange(0, len(frames)-1).Draw(t, "other")
		frames[i], frames[j] = frames[j], frames[i]
	case how == 4 && len(frames[i]) > 0:
		frames[i] = bytes.Clone(frames[i])
		frames[i][rapid.IntRange(0, len(frames[i])-1).Draw(t, "byte")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
	case how == 5:
		frames[i] = frames[i][:rapid.IntRange(0, len(frames[i])).Draw(t, "length")]
	case how == 6: // moves up to four frames together
		n := rapid.IntRange(1, min(4, len(frames)-i)).Draw(t, "count")
		moved := slices.Clone(frames[i : i+n])
		frames = slices.Delete(frames, i, i+n)
		frames = slices.Insert(frames, rapid.IntRange(0, len(frames)).Draw(t, "to"), moved...)
	}
	return frames
}

// TestRandomLiesAreFound changes the frames in one direction at random. The receiver must refuse
// them.
func TestRandomLiesAreFound(t *testing.T) {
	c := newCast(t)
	rapid.Check(t, func(t *rapid.T) {
		k, e := c.short(t, "this"), c.short(t, "earlier")
		d := rapid.IntRange(0, 1).Draw(t, "direction")
		frames := slices.Clone(k.frames[d])
		pool := slices.Concat(k.frames[0], k.frames[1], e.frames[0], e.frames[1])
		for range rapid.IntRange(1, 4).Draw(t, "lies") {
			frames = manipulate(t, frames, pool, 5)
		}
		// A change after the close counts for nothing, because the receiver has ended.
		n := len(k.frames[d])
		if len(frames) >= n && slices.EqualFunc(frames[:n], k.frames[d], bytes.Equal) {
			t.Skip("nothing is changed")
		}
		k.wantFound(t, d, frames)
	})
}

// short returns a talk with four short messages and a close in each direction. It derives the keys
// from random bytes, because a real handshake would take most of the test's time.
func (c *cast) short(t *rapid.T, about string) *talk {
	k := &talk{}
	var keys [2][32]byte
	for d := range keys {
		keys[d] = [32]byte(digest("test", rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "key"), []byte(about), []byte{byte(d)}))
	}
	half := func(d int) half {
		h, err := newHalf(keys[d])
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	k.client = &Session{client: true, limit: 1 << 20, in: half(toClient), out: half(toHost)}
	k.host = &Session{limit: 1 << 20, in: half(toHost), out: half(toClient)}
	for d, from := range []*Session{k.client, k.host} {
		for n := range 4 {
			message := fmt.Sprintf(`{"about":%q,"n":%d,"to":%d}`, about, n, d)
			sealed, err := from.Seal(Message, []byte(message))
			if err != nil {
				t.Fatal(err)
			}
			k.frames[d], k.sent[d] = append(k.frames[d], sealed...), append(k.sent[d], message)
		}
		last, err := from.Seal(Close, AppendClose(ahp.CloseShuttingDown, ""))
		if err != nil {
			t.Fatal(err)
		}
		k.frames[d] = append(k.frames[d], last...)
	}
	return k
}

// A handshakeLie is a way in which a relay interferes with a handshake.
type handshakeLie struct {
	name string
	pair bool
	run  func(c *cast, icfg InitiatorConfig, rcfg ResponderConfig, code *Code) (client *Session, arrival *Arrival, err error)
}

// changes returns a function for a handshakeLie that changes the n-th frame.
func changes(n int, change func(frame []byte) []byte) func(*cast, InitiatorConfig, ResponderConfig, *Code) (*Session, *Arrival, error) {
	return func(_ *cast, icfg InitiatorConfig, rcfg ResponderConfig, _ *Code) (*Session, *Arrival, error) {
		client, arrival, _, err := handshake(icfg, rcfg, func(i int, frame []byte) []byte {
			if i == n {
				return change(bytes.Clone(frame))
			}
			return frame
		})
		return client, arrival, err
	}
}

// replays returns a function for a handshakeLie that replaces the n-th frame by that of an earlier
// handshake.
func replays(n int) func(*cast, InitiatorConfig, ResponderConfig, *Code) (*Session, *Arrival, error) {
	return func(c *cast, icfg InitiatorConfig, rcfg ResponderConfig, code *Code) (*Session, *Arrival, error) {
		_, _, recorded, err := handshake(icfg, rcfg, honest)
		if err != nil {
			return nil, nil, nil // without an error, the test fails
		}
		return changes(n, func([]byte) []byte { return recorded[n] })(c, icfg, rcfg, code)
	}
}

var handshakeLies = []handshakeLie{
	{"changes the first ephemeral key", false, changes(0, func(f []byte) []byte { return flipped(f, 5) })},
	{"changes the first tag", false, changes(0, func(f []byte) []byte { return flipped(f, len(f)-1) })},
	{"changes the purpose", false, changes(0, func(f []byte) []byte { f[1] = byte(Pair); return f })},
	{"changes the purpose of a pairing", true, changes(2, func(f []byte) []byte { f[1] = byte(Connect); return f })},
	{"names an unknown purpose", false, changes(0, func(f []byte) []byte { f[1] = 9; return f })},
	{"sends a zero key", false, changes(0, func(f []byte) []byte { clear(f[2:34]); return f })},
	{"truncates the first message", false, changes(0, func(f []byte) []byte { return f[:len(f)-1] })},
	{"sends nothing", false, changes(0, func([]byte) []byte { return nil })},
	{"changes the second ephemeral key", false, changes(1, func(f []byte) []byte { return flipped(f, 5) })},
	{"changes the second tag", false, changes(1, func(f []byte) []byte { return flipped(f, len(f)-1) })},
	{"answers with a host key although the client knows it", false, changes(1, func([]byte) []byte {
		return append([]byte{byte(kindHostKey)}, make([]byte, KeySize)...)
	})},
	{"changes the device's key", false, changes(2, func(f []byte) []byte { return flipped(f, 3) })},
	{"changes the greeting", false, changes(2, func(f []byte) []byte { return flipped(f, 60) })},
	{"changes the last tag", false, changes(2, func(f []byte) []byte { return flipped(f, len(f)-1) })},
	{"cuts the greeting", false, changes(2, func(f []byte) []byte { return f[:1+thirdSize] })},
	{"replays a first message", false, replays(0)},
	{"replays a second message", false, replays(1)},
	{"replays a third message", false, replays(2)},
	{"sends the first message again", false, changes(2, func([]byte) []byte { return make([]byte, 50) })},
	{"swaps the host's key at a pairing", true, changes(1, func(f []byte) []byte {
		other, err := NewSecret()
		if err != nil {
			return f
		}
		key := other.Public()
		return append(f[:1], key[:]...)
	})},
	{"sits between at a pairing", true, func(_ *cast, icfg InitiatorConfig, rcfg ResponderConfig, _ *Code) (*Session, *Arrival, error) {
		// The relay acts as the host, with its own key and its own code.
		secret, err := NewSecret()
		if err != nil {
			return nil, nil, nil
		}
		rcfg.Secret, rcfg.Code = secret, func() (Code, bool) { return NewCode(), true }
		client, arrival, _, err := handshake(icfg, rcfg, honest)
		return client, arrival, err
	}},
	{"pairs a device of its own without the code", true, func(c *cast, icfg InitiatorConfig, rcfg ResponderConfig, _ *Code) (*Session, *Arrival, error) {
		guess := NewCode()
		icfg.Code, icfg.Device = &guess, c.other
		client, arrival, _, err := handshake(icfg, rcfg, honest)
		return client, arrival, err
	}},
	{"sends a pairing to a different host", true, func(_ *cast, icfg InitiatorConfig, rcfg ResponderConfig, _ *Code) (*Session, *Arrival, error) {
		rcfg.Host = "desktop"
		client, arrival, _, err := handshake(icfg, rcfg, honest)
		return client, arrival, err
	}},
	{"sends a connection to a host of a different name", false, func(_ *cast, icfg InitiatorConfig, rcfg ResponderConfig, _ *Code) (*Session, *Arrival, error) {
		rcfg.Host = "desktop"
		client, arrival, _, err := handshake(icfg, rcfg, honest)
		return client, arrival, err
	}},
	{"sends a connection to a host with a different key", false, func(_ *cast, icfg InitiatorConfig, rcfg ResponderConfig, _ *Code) (*Session, *Arrival, error) {
		other, err := NewSecret()
		if err != nil {
			return nil, nil, nil
		}
		rcfg.Secret = other
		client, arrival, _, err := handshake(icfg, rcfg, honest)
		return client, arrival, err
	}},
	{"shows a QR code's host a different key", true, func(c *cast, icfg InitiatorConfig, rcfg ResponderConfig, _ *Code) (*Session, *Arrival, error) {
		right := HostFingerprint(c.host.Public())
		icfg.Expect = &right
		other, err := NewSecret()
		if err != nil {
			return nil, nil, nil
		}
		rcfg.Secret = other
		client, arrival, _, err := handshake(icfg, rcfg, honest)
		return client, arrival, err
	}},
}

// TestLiesInHandshakesAreFound performs handshakes with each of handshakeLies. Each must end with
// an error, and the host must not admit the client.
func TestLiesInHandshakesAreFound(t *testing.T) {
	for _, lie := range handshakeLies {
		t.Run(lie.name, func(t *testing.T) {
			c := newCast(t)
			icfg, rcfg := c.configs(c.device)
			code := NewCode()
			if lie.pair {
				icfg.Code, icfg.HostKey = &code, nil
				rcfg.Code = func() (Code, bool) { return code, true }
			}
			_, arrival, err := lie.run(&c, icfg, rcfg, &code)
			if err == nil || arrival != nil {
				t.Errorf("the handshake with a change succeeds: %v; want an error", err)
			}
		})
	}
}
