package ahp

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// A StringAt is a string of a JSON value, and where it stands.
type StringAt struct {
	Text  []byte // decoded; nil for one with a lone surrogate, which has no text
	Key   []byte // of the member whose value it is, or is in; nil for none, or where IsKey
	Depth int    // of the object or array around it; 1 for members of the outermost
	IsKey bool   // it is a key itself
}

// Strings calls visit with each string of a raw JSON value that is valid, such
// as the Params that [Peek] returned, keys included, in their order, until
// visit returns false. What visit is given is good until it returns.
func Strings(raw []byte, visit func(StringAt) bool) {
	s := scanner{buf: raw}
	var key []byte
	var free, kept []byte // buffers for texts with escapes, and for keys
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end, plain := runEnd(raw, i+1)
			text := raw[i+1 : end : end]
			if !plain {
				text, end = unescapeInto(&free, raw, i+1, end)
			}
			if end == len(raw) {
				return
			}
			after, c := s.token(end + 1)
			i = after - 1
			at := StringAt{Text: text, Key: key, Depth: depth}
			if c == ':' {
				key = text
				free, kept = kept, free // the key stays
				at.Key, at.IsKey = nil, true
			}
			if !visit(at) {
				return
			}
		}
	}
}

// runEnd returns where the run of a string ends that begins at i: with its quote, which
// plain says, with an escape, or with all there is.
func runEnd(raw []byte, i int) (end int, plain bool) {
	for ; i+8 <= len(raw); i += 8 {
		if found := endsRun(binary.LittleEndian.Uint64(raw[i:])); found != 0 {
			i += bits.TrailingZeros64(found) / 8
			return i, raw[i] == '"'
		}
	}
	for ; i < len(raw); i++ {
		if raw[i] == '"' || raw[i] == '\\' {
			return i, raw[i] == '"'
		}
	}
	return i, true
}

// endsRun marks the quotes and backslashes of a word. The lowest mark is exact.
func endsRun(word uint64) uint64 {
	quote, backslash := word^'"'*lowBits, word^'\\'*lowBits
	return ((quote-lowBits)&^quote | (backslash-lowBits)&^backslash) & highBits
}

// unescapeRoom is how much of its buffer unescapeInto may write in a step.
const unescapeRoom = 8

// unescapeInto returns the text of a valid string, decoded into a buffer, and where its
// quote is, or the end of what there is. Its first escape is at i. The text is nil for a
// lone surrogate, which is not half of a pair.
func unescapeInto(buffer *[]byte, raw []byte, start, i int) (text []byte, end int) {
	buf := append((*buffer)[:0], raw[start:i]...)
	buf = slices.Grow(buf, unescapeRoom)
	n, lone := len(buf), false
	for {
		if cap(buf)-n < unescapeRoom {
			buf = slices.Grow(buf[:n], min(3*n, len(raw)-i)+unescapeRoom)
		}
		buf = buf[:cap(buf)]
		switch {
		case i+1 < len(raw) && raw[i] == '\\' && raw[i+1] != 'u':
			buf[n] = shortEscape(raw[i+1])
			n, i = n+1, i+2
		case i+1 < len(raw) && raw[i] == '\\':
			r, size := unicodeEscape(raw[i:])
			lone = lone || r == loneSurrogate
			n, i = n+utf8.EncodeRune(buf[n:], r), i+size
		case i+1 >= len(raw) && (i == len(raw) || raw[i] == '\\') || raw[i] == '"':
			*buffer = buf
			if lone {
				return nil, i
			}
			return buf[:n:n], i
		case i+8 <= len(raw) && raw[i+1] != '\\': // escapes come together, or nearly
			word := binary.LittleEndian.Uint64(raw[i:])
			binary.LittleEndian.PutUint64(buf[n:], word)   // what is behind the run is written over
			run := bits.TrailingZeros64(endsRun(word)) / 8 // 8 for none
			n, i = n+run, i+run
		default:
			buf[n] = raw[i]
			n, i = n+1, i+1
		}
	}
}

// loneSurrogate is no rune.
const loneSurrogate = -1

// unicodeEscape returns the rune of the escape with u that stands first, or of it and the
// next, and how long that is. The rune may be loneSurrogate.
func unicodeEscape(raw []byte) (r rune, size int) {
	const long = len(`\u0000`)
	r, ok := hex4(raw[2:])
	if !utf16.IsSurrogate(r) || !ok {
		return r, min(long, len(raw))
	}
	if len(raw) >= 2*long && raw[long] == '\\' && raw[long+1] == 'u' {
		if low, ok := hex4(raw[long+2:]); ok {
			if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
				return both, 2 * long
			}
		}
	}
	return loneSurrogate, long
}
