package ahp

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// A StringAt is a string in a JSON value, and its position.
type StringAt struct {
	Text  []byte // decoded; nil for a lone surrogate, which has no text
	Key   []byte // the last key before it, so the enclosing member's in an object; nil without one, or if IsKey is true
	Depth int    // of the enclosing object or array; 1 for members of the outermost
	IsKey bool   // it is a key itself
	Bare  bool   // it surely has no slash, backslash, colon or percent sign, so it is neither a URI nor a path
}

// Strings calls visit for each string in a valid raw JSON value, such as Params from
// [Peek], keys included, in order, until visit returns false. The StringAt is valid
// until visit returns.
func Strings(raw []byte, visit func(StringAt) bool) {
	s := scanner{buf: raw}
	var key []byte
	depth := 0
	buffers := textBuffers.Get().(*[2][]byte)
	defer putTextBuffers(buffers)
	free, kept := &buffers[0], &buffers[1] // for texts with escapes, and for keys
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end, marked := runEnd(raw, i+1)
			text := raw[i+1 : end : end]
			if end < len(raw) && raw[end] != '"' {
				text, end = unescapeInto(free, raw, i+1, end)
				marked = true
			}
			if end >= len(raw) {
				return
			}
			i = end
			at := StringAt{Text: text, Key: key, Depth: depth, Bare: !marked}
			if c := raw[min(end+1, len(raw)-1)]; c != ',' { // a string before a comma is no key
				after, c := s.token(end + 1)
				i = after - 1
				if c == ':' {
					key = text
					free, kept = kept, free // the next text must not overwrite the key
					at.Key, at.IsKey = nil, true
				}
			}
			if !visit(at) {
				return
			}
		}
	}
}

// textBuffers are the buffers into which [Strings] decodes.
var textBuffers = sync.Pool{New: func() any { return new([2][]byte) }}

// mostKept is the largest buffer kept for reuse, in bytes.
const mostKept = 2 << 20

func putTextBuffers(buffers *[2][]byte) {
	for i := range buffers {
		if cap(buffers[i]) > mostKept {
			buffers[i] = nil
		}
	}
	textBuffers.Put(buffers)
}

// runEnd returns where the plain run that begins at i ends: at a quote, at an escape
// or at the input's end. marked reports whether the run may contain a character that
// Bare excludes.
func runEnd(raw []byte, i int) (end int, marked bool) {
	for ; i+8 <= len(raw) && !marked; i += 8 {
		word := binary.LittleEndian.Uint64(raw[i:])
		if found := endsRun(word); found != 0 {
			run := bits.TrailingZeros64(found)
			return i + run/8, marksIn(word)&(1<<run-1) != 0
		}
		marked = marksIn(word) != 0
	}
	for ; i+8 <= len(raw); i += 8 {
		if found := endsRun(binary.LittleEndian.Uint64(raw[i:])); found != 0 {
			return i + bits.TrailingZeros64(found)/8, true
		}
	}
	for ; i < len(raw) && raw[i] != '"' && raw[i] != '\\'; i++ {
		marked = true // these last bytes are not searched for marks
	}
	return i, marked
}

// marksIn marks the slashes, colons and percent signs in a word. The lowest mark is
// exact; higher marks may be false.
func marksIn(word uint64) uint64 {
	slash, colon, percent := word^'/'*lowBits, word^':'*lowBits, word^'%'*lowBits
	return ((slash-lowBits)&^slash | (colon-lowBits)&^colon | (percent-lowBits)&^percent) & highBits
}

// endsRun marks the quotes and backslashes in a word. The lowest mark is exact.
func endsRun(word uint64) uint64 {
	quote, backslash := word^'"'*lowBits, word^'\\'*lowBits
	return ((quote-lowBits)&^quote | (backslash-lowBits)&^backslash) & highBits
}

// unescapeRoom is the largest single write of unescapeInto. A step may write twice.
const unescapeRoom = 8

// unescapeInto decodes a valid string, whose first escape is at i, into a buffer. It
// returns the text, and the position of the closing quote or the input's end. The text
// is nil if it contains a lone surrogate. The branches share one pass over eight bytes
// at a time.
func unescapeInto(buffer *[]byte, raw []byte, start, i int) (text []byte, end int) {
	buf := append((*buffer)[:0], raw[start:i]...)
	n, lone := len(buf), false
	for {
		if cap(buf)-n < 2*unescapeRoom {
			buf = slices.Grow(buf[:n], min(3*n, len(raw)-i)+2*unescapeRoom)
		}
		buf = buf[:cap(buf)]
		if i+1 >= len(raw) || raw[i] != '\\' {
			if i < len(raw) && raw[i] != '"' && raw[i] != '\\' { // no room was left, or the input ends soon
				n, i = copyRun(buf, raw, n, i)
				continue
			}
			*buffer = buf
			if lone {
				return nil, i
			}
			return buf[:n:n], i
		}
		if c := raw[i+1]; c != 'u' {
			buf[n] = shortEscapeOf[c]
			n, i = n+1, i+2
		} else {
			r, size := unicodeEscape(raw[i:])
			lone = lone || r == loneSurrogate
			n, i = n+utf8.EncodeRune(buf[n:], r), i+size
		}
		if i+8 > len(raw) || raw[i] == '\\' { // escapes often stand close together
			continue
		}
		if raw[i+1] == '\\' && raw[i] != '"' {
			buf[n] = raw[i]
			n, i = n+1, i+1
			continue
		}
		word := binary.LittleEndian.Uint64(raw[i:])
		binary.LittleEndian.PutUint64(buf[n:], word) // bytes behind the run are overwritten later
		if found := endsRun(word); found != 0 {
			run := bits.TrailingZeros64(found) / 8
			n, i = n+run, i+run
		} else {
			n, i = copyRun(buf, raw, n+8, i+8)
		}
	}
}

// copyRun copies plain characters from raw[i:] to buf[n:], as far as there is room. It
// returns n and i behind the copied characters.
func copyRun(buf, raw []byte, n, i int) (int, int) {
	for n+8 <= len(buf) && i+8 <= len(raw) {
		word := binary.LittleEndian.Uint64(raw[i:])
		binary.LittleEndian.PutUint64(buf[n:], word)
		if found := endsRun(word); found != 0 {
			run := bits.TrailingZeros64(found) / 8
			return n + run, i + run
		}
		n, i = n+8, i+8
	}
	for n < len(buf) && i < len(raw) && raw[i] != '"' && raw[i] != '\\' {
		buf[n] = raw[i]
		n, i = n+1, i+1
	}
	return n, i
}

// loneSurrogate stands for a surrogate outside of a pair.
const loneSurrogate = -1

// unicodeEscape decodes the first \u escape, or a surrogate pair, and returns its rune
// and length. The rune may be loneSurrogate.
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
