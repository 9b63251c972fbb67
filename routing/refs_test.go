package routing

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/broker/link"
)

func connSets() *rapid.Generator[[]uint64] {
	return rapid.Custom(func(t *rapid.T) []uint64 {
		conn := rapid.OneOf(rapid.Uint64Range(0, 70), rapid.Uint64Range(0, maxConns-1))
		list := rapid.SliceOfN(conn, 1, 40).Draw(t, "conns")
		first := rapid.Uint64Range(0, maxConns-200).Draw(t, "first")
		for i := range rapid.Uint64Range(0, 199).Draw(t, "run") {
			list = append(list, first+i)
		}
		slices.Sort(list)
		return slices.Compact(list)
	})
}

func TestSetOfConnectionsReturnsAsSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := connSets().Draw(t, "set")
		var s connSet
		for _, c := range want {
			s.add(c)
		}
		b := s.append([]byte("before"))[len("before"):]
		f := &link.Fields{B: append(slices.Clip(b), "after"...)}
		var got []uint64
		if err := readConnSet(f, func(conn uint64) { got = append(got, conn) }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) || s.count != len(want) || string(f.B) != "after" {
			t.Fatalf("the set %v is read as %v, with %q left; want the same, and after", want, got, f.B)
		}
	})
}

// TestConnSetIsShort encodes sets of connection numbers. Each must take at most the given number of
// bytes, which only the shorter of its two forms does.
func TestConnSetIsShort(t *testing.T) {
	for _, test := range []struct {
		name     string
		from, to uint64
		step     uint64
		limit    int
	}{
		{"one", 40_000, 40_000, 1, 7},
		{"all", 0, maxConns - 1, 1, 7},
		{"every other of 1000", 1, 1999, 2, 260},
		{"every hundredth of all", 0, maxConns - 1, 100, 1400},
	} {
		var s connSet
		for c := test.from; c <= test.to; c += test.step {
			s.add(c)
		}
		if n := len(s.append(nil)); n > test.limit {
			t.Errorf("%s: the encoded set of connections has %d bytes; want at most %d", test.name, n, test.limit)
		}
	}
}

func TestListOfBodiesReturnsAsSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Uint64Range(1, 50), rapid.Uint64Range(1, 1<<62))
		want := rapid.SliceOfN(number, 0, 50).Draw(t, "numbers")
		for i := range len(want) / 2 { // half of the numbers follow their predecessors
			want[2*i+1] = want[2*i] + 1
		}
		floor := number.Draw(t, "floor")
		b, last := appendBodyList(nil, want, floor)
		f := &link.Fields{B: b}
		got, end, err := readBodyList(f, nil, floor)
		if err != nil || !slices.Equal(got, want) || end != last || len(f.B) > 0 {
			t.Fatalf("the list %v is read as %v, %v; the next is relative to %d, want %d", want, got, err, end, last)
		}
	})
}

// TestBatchKeepsEachConnectionsOrder adds references to a batch in random order, and decodes the
// record that the batch makes. For each connection, the record must name the bodies in the order in
// which they were added.
func TestBatchKeepsEachConnectionsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bodies := make([]*body, rapid.IntRange(1, 20).Draw(t, "bodies"))
		for i := range bodies {
			bodies[i] = &body{number: uint64(i)*3 + 7, size: 1}
		}
		streams := make([]*stream, rapid.IntRange(1, 30).Draw(t, "streams"))
		for i := range streams {
			streams[i] = &stream{conn: uint64(i * i)}
		}
		left := uint64(0)
		batch := batch{room: 1 << 20, floor: func() uint64 { return 5 }, left: func() uint64 { return left }}
		want := map[uint64][]uint64{}
		uses := 0
		for range rapid.IntRange(1, 200).Draw(t, "adds") {
			s, b := rapid.SampledFrom(streams).Draw(t, "stream"), rapid.SampledFrom(bodies).Draw(t, "body")
			batch.add(s, b)
			want[s.conn] = append(want[s.conn], b.number)
		}
		for _, b := range bodies {
			uses += b.uses
		}
		f := &link.Fields{B: batch.append(nil)}
		if kind := recordKind(f.Byte()); kind != recordRefs {
			t.Fatalf("the record has the kind %d; want recordRefs", kind)
		}
		got := map[uint64][]uint64{}
		last, entries := f.Uvarint(), f.Uvarint()
		for range entries {
			var list []uint64
			var err error
			if list, last, err = readBodyList(f, nil, last); err != nil {
				t.Fatal(err)
			}
			if err := readConnSet(f, func(conn uint64) {
				if got[conn] != nil {
					t.Fatalf("connection %d is in two entries; want one", conn)
				}
				got[conn] = list
			}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || len(f.B) > 0 {
			t.Fatalf("what was noted and what came differ (-want +got), %d bytes left:\n%s", len(f.B), diff)
		}
		if sent := batch.takeSent(); len(sent) != uses || batch.bytes != 0 || batch.refs != 0 || len(batch.streams) != 0 {
			t.Fatalf("%d bodies are in use, and %d to be released; want the same, and an empty batch", uses, len(sent))
		}
		for _, s := range streams {
			if s.node != nil {
				t.Fatal("a stream is still in the batch; want none")
			}
		}
		_ = maps.Keys(got)
	})
}

// TestBodyListIsBounded decodes lists which are too long for a packet, cut short, or have a number
// that no body can have. Each must be refused.
func TestBodyListIsBounded(t *testing.T) {
	for _, test := range []struct {
		name string
		list []byte
	}{
		{"cut short", []byte{1}},
		{"long run", append(append([]byte{1}, 2), 0x80, 0x80, 0x02)},
		{"many runs", append([]byte{0xff, 0xff, 0x7f}, make([]byte, 1<<17)...)},
		{"number zero", []byte{1, 1, 0}}, // the difference is relative to floor 1, so the number is 0
		{"over the end", []byte{1, 3, 5}},
	} {
		floor := uint64(1)
		if test.name == "over the end" {
			floor = 0
		}
		if list, _, err := readBodyList(&link.Fields{B: test.list}, nil, floor); err == nil {
			t.Errorf("%s: a list of %d bodies is accepted; want an error", test.name, len(list))
		}
	}
}
