package routing

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// hears delivers a published body to a relay.
func hears(r *RelayEnd, number uint64, frame []byte) {
	r.Body(encodeBody(r.cfg.Agent, number, frame))
}

// headed returns a configuration whose encoders put a header before each message, as WebSocket
// does: two bytes before a short message, else four.
func headed() RelayEndConfig {
	head := func(size int) []byte { return []byte("head")[:2+2*min(1, size/126)] }
	encode := func(piece []byte, _, _, _ bool) []byte { return append(head(len(piece)), piece...) }
	return RelayEndConfig{Encode: encode, EncodeIn: func(buffer []byte, at int, _ bool) []byte {
		h := head(len(buffer) - at)
		if len(h) > at {
			return encode(buffer[at:], true, true, false)
		}
		copy(buffer[at-len(h):], h)
		return buffer[at-len(h):]
	}}
}

// TestJoinedBodiesAreOneFrame delivers several bodies to a relay in one published message. Each
// body must be encoded unchanged. If all bodies are long, the relay must pass them on as one frame,
// without a copy.
func TestJoinedBodiesAreOneFrame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRelayEnd(headed())
		want := map[uint64][]byte{}
		for number := uint64(1); number < 30; {
			var bodies []*body
			large := true // all bodies have headers of four bytes, which fill the room before them
			for range rapid.IntRange(1, 8).Draw(t, "together") {
				frame := bytes.Repeat([]byte{byte('a' + number%26)}, rapid.SampledFrom([]int{0, 1, 125, 126, 500, 5000}).Draw(t, "size"))
				bodies = append(bodies, &body{number: number, frame: frame})
				want[number] = r.cfg.Encode(frame, true, true, false)
				large = large && len(frame) >= 126
				number++
			}
			if len(bodies) == 1 {
				hears(r, bodies[0].number, bodies[0].frame)
				continue
			}
			r.Body(encodeBodies("", bodies))
			r.list, r.frames = r.list[:0], r.frames[:0]
			for _, b := range bodies {
				r.list = append(r.list, b.number)
			}
			first := r.bodies.frames[r.list[0]]
			if there := r.inRows(); !there || large && (len(r.frames) != 1 || r.frames[0].Messages != len(bodies) || &r.frames[0].Data[0] != &first.Data[0]) {
				t.Fatalf("%d bodies that came together are in rows: %v, in %d frames; want one frame without a copy if large", len(bodies), there, len(r.frames))
			}
		}
		for number, encoded := range want {
			if got := r.bodies.frames[number].Data; !bytes.Equal(got, encoded) {
				t.Fatalf("body %d is %.20q of %d bytes; want %.20q of %d", number, got, len(got), encoded, len(encoded))
			}
		}
	})
}

// TestRowsKeepTheirBodies makes a relay join rows of consecutive or repeated bodies, some of which
// are missing. Frames for a row must contain its bodies in order, and never change later.
func TestRowsKeepTheirBodies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRelayEnd(headed())
		sizes := rapid.SampledFrom([]int{1, 500, 3000, mostOfOne, mostOfOne + 1, mostBlock + 1})
		const many = 40
		said := map[uint64][]byte{}
		for number := uint64(1); number <= many; number++ {
			var bodies []*body
			for range rapid.IntRange(0, 4).Draw(t, "together") {
				frame := bytes.Repeat([]byte{byte(number)}, sizes.Draw(t, "size"))
				bodies = append(bodies, &body{number: number, frame: frame})
				said[number] = r.cfg.Encode(frame, true, true, false)
				number++
			}
			r.Body(encodeBodies("", bodies)) // one number is skipped: that body is missing
		}
		type given struct {
			frames []Frame
			want   []byte
		}
		var all []given
		r.rows = rapid.IntRange(0, mostRows).Draw(t, "rows to come")
		for range rapid.IntRange(1, 30).Draw(t, "rows") {
			first := rapid.Uint64Range(1, many).Draw(t, "first")
			r.list = r.list[:0]
			for number := first; number <= min(many, first+rapid.Uint64Range(0, 30).Draw(t, "more")); number += rapid.Uint64Range(0, 2).Draw(t, "step") {
				if r.list = append(r.list, number); len(r.list) > 50 {
					break
				}
			}
			var want []byte
			there := true
			for _, number := range r.list {
				there = there && said[number] != nil
				want = append(want, said[number]...)
			}
			r.frames = r.frames[:0]
			if got := r.inRows(); got != there {
				t.Fatalf("bodies %v are there: %v; want %v", r.list, got, there)
			}
			if there {
				all = append(all, given{slices.Clone(r.frames), want})
			}
			if rapid.IntRange(0, 9).Draw(t, "next packet") == 0 {
				r.block.drop()
			}
		}
		for _, g := range all {
			var got []byte
			for _, f := range g.frames {
				got = append(got, f.Data...)
				if f.Shared == nil || f.Shared.Size < len(f.Data) {
					t.Fatalf("a frame of %d bytes is a part of %+v; want a shared row at least as long", len(f.Data), f.Shared)
				}
			}
			if !bytes.Equal(got, g.want) {
				t.Fatalf("a row of %d bytes has changed; want the sent bytes", len(g.want))
			}
		}
	})
}

// TestRowsAreFew makes a relay join rows which begin and end at different places in a sequence of
// bodies, as for connections at different positions. Each row must become a single frame.
func TestRowsAreFew(t *testing.T) {
	r := NewRelayEnd(RelayEndConfig{Encode: func(piece []byte, _, _, _ bool) []byte { return bytes.Clone(piece) }})
	for number := uint64(1); number <= 60; number++ {
		hears(r, number, fmt.Appendf(nil, "body %300d", number))
	}
	r.rows = 4 // number of rows to come after the first
	for _, row := range [][2]uint64{{10, 20}, {10, 40}, {15, 60}, {30, 31}, {60, 60}} {
		r.list, r.frames = r.list[:0], r.frames[:0]
		for number := row[0]; number <= row[1]; number++ {
			r.list = append(r.list, number)
		}
		if !r.inRows() || len(r.frames) != 1 || r.frames[0].Messages != len(r.list) {
			t.Errorf("bodies %d to %d are %d frames; want one", row[0], row[1], len(r.frames))
		}
	}
}

// TestRowsAreBounded makes a relay join a row which refers to the same bodies a hundred times. The
// frames must not occupy more memory than the bound for copies permits.
func TestRowsAreBounded(t *testing.T) {
	r := NewRelayEnd(RelayEndConfig{Encode: func(piece []byte, _, _, _ bool) []byte { return bytes.Clone(piece) }})
	const many = 3 * mostBlock / mostOfOne
	for number := uint64(1); number <= many; number++ {
		hears(r, number, make([]byte, mostOfOne))
		r.list = append(r.list, number)
	}
	r.list = slices.Repeat(r.list, 100)
	held := map[*Shared]bool{}
	if !r.inRows() {
		t.Fatal("the rows lack bodies; want them all")
	}
	bytes := 0
	for _, f := range r.frames {
		if !held[f.Shared] {
			held[f.Shared] = true
			bytes += f.Shared.Size
		}
	}
	if most := mostCopied + mostBlock + many*mostOfOne; bytes > most {
		t.Errorf("%d bytes for %d bodies; want at most %d", bytes, many, most)
	}
}

// TestDamagedBodyIsDropped changes each bit in a published message with bodies. Body must return
// false and keep nothing. The unchanged message must be accepted.
func TestDamagedBodyIsDropped(t *testing.T) {
	for _, message := range [][]byte{encodeBody("", 1, []byte("one")), encodeBodies("", []*body{{number: 1, frame: []byte("one")}, {number: 2, frame: []byte("two")}})} {
		r := NewRelayEnd(headed())
		for bit := range 8 * len(message) {
			changed := bytes.Clone(message)
			changed[bit/8] ^= 1 << (bit % 8)
			if r.Body(changed) || len(r.bodies.frames) > 0 {
				t.Fatalf("Body accepts %q with bit %d changed; want a refusal", message, bit)
			}
		}
		if r.Body(message[:3]) || !r.Body(message) || len(r.bodies.frames) == 0 {
			t.Errorf("the message %q is not kept as a body; want it kept", message)
		}
	}
}
