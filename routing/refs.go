package routing

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"ahprelay/broker/link"
)

// A refs record assigns bodies to connections. It contains the floor (no later record on the
// link names a body with a lower number), the number of entries, and the entries. An entry is
// a list of bodies in delivery order, and the set of connections that receive all of them. A
// connection appears in at most one entry.
//
// The list is encoded as runs of consecutive body numbers: first how many runs, then two
// varints for each. The first is the signed distance from the end of the previous run in the
// record (for the first run, from the floor); the second is the run's length minus one. The
// set begins with its form. Form setRuns encodes runs in the same way with unsigned
// distances. Form setBitmap encodes the connection of the bitmap's first bit, and the bitmap
// with its length in bytes; lower bits come first.
const (
	setRuns = iota
	setBitmap
)

// maxConns bounds the connections of a link.
const maxConns = 1 << 16

var errBadRefs = errors.New("bad refs record")

// connSet is a set of connection numbers below maxConns.
type connSet struct {
	words []uint64
	count int
}

func (s *connSet) add(conn uint64) {
	w := int(conn / 64)
	for len(s.words) <= w {
		s.words = append(s.words, 0)
	}
	s.words[w] |= 1 << (conn % 64)
	s.count++
}

// next returns the first run of members at or above from. It reports false if there is none.
func (s *connSet) next(from int) (first, after int, ok bool) {
	first = s.scan(from, 0)
	if first < 0 {
		return 0, 0, false
	}
	after = s.scan(first, ^uint64(0))
	if after < 0 {
		after = 64 * len(s.words)
	}
	return first, after, true
}

// scan returns the lowest number at or above from whose bit differs from the bits in same, or
// -1.
func (s *connSet) scan(from int, same uint64) int {
	for w := from / 64; w < len(s.words); w++ {
		word := s.words[w] ^ same
		if w == from/64 {
			word &= ^uint64(0) << (from % 64)
		}
		if word != 0 {
			return 64*w + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// append encodes the set in the shorter of its two forms.
func (s *connSet) append(b []byte) []byte {
	start := len(b)
	b = append(b, setRuns)
	b = binary.AppendUvarint(b, uint64(s.runs()))
	end := 0
	for first, after, ok := s.next(0); ok; first, after, ok = s.next(after) {
		b = binary.AppendUvarint(b, uint64(first-end))
		b = binary.AppendUvarint(b, uint64(after-first-1))
		end = after
	}
	base := s.scan(0, 0) / 8
	last := len(s.words) * 8
	for last > base && s.octet(last-1) == 0 {
		last--
	}
	if len(b)-start <= last-base+6 {
		return b
	}
	b = append(b[:start], setBitmap)
	b = binary.AppendUvarint(b, uint64(base*8))
	b = binary.AppendUvarint(b, uint64(last-base))
	for i := base; i < last; i++ {
		b = append(b, s.octet(i))
	}
	return b
}

func (s *connSet) runs() (n int) {
	for _, after, ok := s.next(0); ok; _, after, ok = s.next(after) {
		n++
	}
	return n
}

func (s *connSet) octet(i int) byte { return byte(s.words[i/8] >> (i % 8 * 8)) }

// readConnSet calls visit for each member of an encoded set.
func readConnSet(f *link.Fields, visit func(conn uint64)) error {
	switch f.Byte() {
	case setRuns:
		return readRuns(f, visit)
	case setBitmap:
		base := f.Uvarint()
		octets := f.Bytes()
		if f.Bad || base > maxConns || len(octets) > maxConns/8 {
			return errBadRefs
		}
		for i, o := range octets {
			for ; o != 0; o &= o - 1 {
				visit(base + uint64(8*i+bits.TrailingZeros8(o)))
			}
		}
		return nil
	}
	return errBadRefs
}

func readRuns(f *link.Fields, visit func(conn uint64)) error {
	var at uint64
	for runs := f.Uvarint(); runs > 0; runs-- {
		first, more := f.Uvarint(), f.Uvarint()
		if f.Bad || first > maxConns || more > maxConns || at+first+more >= maxConns {
			return errBadRefs
		}
		at += first
		for end := at + more; at <= end; at++ {
			visit(at)
		}
	}
	return nil
}

// appendBodyList encodes a list of body numbers relative to last. It returns the number that
// follows the final one.
func appendBodyList(b []byte, numbers []uint64, last uint64) ([]byte, uint64) {
	runs := 0
	for i, n := range numbers {
		if i == 0 || n != numbers[i-1]+1 {
			runs++
		}
	}
	b = binary.AppendUvarint(b, uint64(runs))
	for i := 0; i < len(numbers); {
		n := 1
		for i+n < len(numbers) && numbers[i+n] == numbers[i]+uint64(n) {
			n++
		}
		b = binary.AppendVarint(b, int64(numbers[i]-last))
		b = binary.AppendUvarint(b, uint64(n-1))
		last = numbers[i] + uint64(n)
		i += n
	}
	return b, last
}

// readBodyList decodes a list of at most maxRefs body numbers and appends them to list. It
// also returns the number that follows the final one.
func readBodyList(f *link.Fields, list []uint64, last uint64) ([]uint64, uint64, error) {
	for runs := f.Uvarint(); runs > 0; runs-- {
		first := last + uint64(f.Varint())
		more := f.Uvarint()
		if f.Bad || more >= maxRefs || len(list)+int(more) >= maxRefs || first == 0 || first+more < first {
			return list, last, errBadRefs
		}
		for k := range more + 1 {
			list = append(list, first+k)
		}
		last = first + more + 1
	}
	if f.Bad {
		return list, last, errBadRefs
	}
	return list, last, nil
}
