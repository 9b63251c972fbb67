package ahp

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A scanner validates a JSON text (RFC 8259) in one pass. Its methods take a start
// position, and return the position behind the parsed part, or failed. The first
// failure is kept.
//
// It does not recurse into values: open objects and arrays are bits, so nesting costs
// no stack.
type scanner struct {
	buf   []byte
	depth int                          // open objects and arrays
	kinds [(MaxDepth + 63) / 64]uint64 // marks the objects among them
	err   *FrameError

	spelling bool   // look for keys that differ from a wanted key in case
	other    string // the last wanted key found in that form, or ""
	otherAt  int
}

// failed is the position a method returns after a failure.
const failed = -1

func (s *scanner) fail(at int, reason string) int {
	s.err = &FrameError{at, reason}
	return failed
}

// unexpected refuses the byte at i, or the text's end.
func (s *scanner) unexpected(i int) int {
	if i >= len(s.buf) {
		return s.fail(len(s.buf), "unexpected end")
	}
	return s.fail(i, "unexpected byte")
}

// document validates the whole text, a single object, and fills want and inner like
// object.
func (s *scanner) document(want, inner []Member) *FrameError {
	i, c := s.token(0)
	if c != '{' {
		s.fail(i, "not a JSON object")
		return s.err
	}
	if i = s.object(i, want, inner); i == failed {
		return s.err
	}
	if i, _ = s.token(i); i < len(s.buf) {
		s.fail(i, "bytes after the object")
	}
	return s.err
}

// object validates the object at i and fills the members in want. If a wanted member
// is marked as parent and is an object itself, its members fill inner.
func (s *scanner) object(i int, want, inner []Member) int {
	if i = s.open(i); i == failed {
		return failed
	}
	i, c := s.token(i)
	if c == '}' {
		s.depth--
		return i + 1
	}
	for {
		var m *Member
		if i, m = s.name(i, want); i == failed {
			return failed
		}
		start, c := s.token(i)
		if m != nil && m.parent && c == '{' {
			i = s.object(start, inner, nil)
		} else {
			i = s.value(start)
		}
		if i == failed {
			return failed
		}
		if m != nil {
			m.Raw, m.offset = s.buf[start:i:i], start
		}
		switch i, c = s.token(i); c {
		case ',':
			i++
		case '}':
			s.depth--
			return i + 1
		default:
			return s.unexpected(i)
		}
	}
}

// name reads a key and its colon, and returns its member of want, or nil.
func (s *scanner) name(i int, want []Member) (int, *Member) {
	i, c := s.token(i)
	if c != '"' {
		return s.unexpected(i), nil
	}
	end, plain := s.string(i)
	if end == failed {
		return failed, nil
	}
	key := s.buf[i+1 : end-1]
	if !plain {
		var ok bool
		if key, ok = unescape(key); !ok {
			return s.fail(i, "lone surrogate in a key"), nil
		}
	}
	m := find(want, key)
	if m == nil && s.spelling {
		if alike := findFolded(want, key); alike != "" {
			s.other, s.otherAt = alike, i
		}
	}
	if m != nil && m.Raw != nil {
		if !m.lenient {
			return s.fail(i, strconv.Quote(m.Name)+" given twice"), nil
		}
		m.twice = true
	}
	return s.colon(end), m
}

// find returns the member in want with this key, or nil.
func find(want []Member, key []byte) *Member {
	for k := range want {
		if want[k].Name == string(key) {
			return &want[k]
		}
	}
	return nil
}

// findFolded returns the name in want that equals key without regard to case, or "".
// It folds like encoding/json, which also equates U+017F with s and U+212A with k.
func findFolded(want []Member, key []byte) string {
	for k := range want {
		name := want[k].Name
		if len(key) < len(name) || key[0]|0x20 != name[0]|0x20 && key[0] < utf8.RuneSelf {
			continue // a key that equals an ASCII name without regard to case is at least as long
		}
		if strings.EqualFold(name, string(key)) {
			return name
		}
	}
	return ""
}

func (s *scanner) value(i int) int {
	floor := s.depth
	for {
		at, c := s.token(i)
		switch c {
		case '"':
			i, _ = s.string(at)
		case '{', '[':
			if i = s.open(at); i == failed {
				return failed
			}
			if inner, next := s.token(i); next == c+2 { // '}' is '{'+2, and ']' is '['+2
				s.depth--
				i = inner + 1
			} else if c == '[' {
				continue
			} else if i = s.key(inner); i == failed {
				return failed
			} else {
				continue
			}
		default:
			i = s.scalar(at, c)
		}
		if i != failed {
			i = s.follow(i, floor)
		}
		if i == failed || s.depth == floor {
			return i
		}
	}
}

// follow reads the text between the end of one value and the start of the next:
// closing brackets, down to the depth floor, then a comma and a key.
func (s *scanner) follow(i, floor int) int {
	for s.depth > floor {
		at, c := s.token(i)
		object := s.kinds[(s.depth-1)/64]>>((s.depth-1)%64)&1 != 0
		switch {
		case c == ',' && object:
			at, _ = s.token(at + 1)
			return s.key(at)
		case c == ',':
			return at + 1
		case c == '}' && object, c == ']' && !object:
			s.depth--
			i = at + 1
		default:
			return s.unexpected(at)
		}
	}
	return i
}

const tooDeep = "nested too deep"

// Deeper reports whether a JSON value has more than most nested objects and arrays; most is at most MaxDepth.
func Deeper(value []byte, most int) bool {
	s := scanner{buf: value, depth: MaxDepth - most}
	return s.value(0) == failed && s.err.Reason == tooDeep
}

// open enters the object or array that starts at i.
func (s *scanner) open(i int) int {
	if s.depth == MaxDepth {
		return s.fail(i, tooDeep)
	}
	word, bit := &s.kinds[s.depth/64], uint64(1)<<(s.depth%64)
	if s.buf[i] == '{' {
		*word |= bit
	} else {
		*word &^= bit
	}
	s.depth++
	return i + 1
}

// key validates a key that is not wanted, and its colon.
func (s *scanner) key(i int) int {
	if i >= len(s.buf) || s.buf[i] != '"' {
		return s.unexpected(i)
	}
	if i, _ = s.string(i); i == failed {
		return failed
	}
	return s.colon(i)
}

func (s *scanner) colon(i int) int {
	i, c := s.token(i)
	if c != ':' {
		return s.unexpected(i)
	}
	return i + 1
}

// token returns the position and value of the first byte from i that is not white
// space. At the end the byte is 0.
func (s *scanner) token(i int) (int, byte) {
	const space = 1<<' ' | 1<<'\t' | 1<<'\n' | 1<<'\r'
	for ; i < len(s.buf); i++ {
		if c := s.buf[i]; c > ' ' || space>>c&1 == 0 {
			return i, c
		}
	}
	return i, 0
}

// scalar validates the number or literal that starts with c at i.
func (s *scanner) scalar(i int, c byte) int {
	switch c {
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	}
	return s.number(i)
}

func (s *scanner) literal(i int, word string) int {
	if !bytes.HasPrefix(s.buf[i:], []byte(word)) {
		return s.unexpected(i)
	}
	return i + len(word)
}

// number validates a number: RFC 8259, section 6.
func (s *scanner) number(i int) int {
	if s.byteAt(i) == '-' {
		i++
	}
	if s.byteAt(i) == '0' {
		i++
	} else if i = s.digits(i); i == failed {
		return failed
	}
	if s.byteAt(i) == '.' {
		if i = s.digits(i + 1); i == failed {
			return failed
		}
	}
	if c := s.byteAt(i); c == 'e' || c == 'E' {
		i++
		if c := s.byteAt(i); c == '+' || c == '-' {
			i++
		}
		return s.digits(i)
	}
	return i
}

// digits reads one digit or more.
func (s *scanner) digits(i int) int {
	start := i
	for i < len(s.buf) && s.buf[i]-'0' <= 9 {
		i++
	}
	if i == start {
		return s.unexpected(i)
	}
	return i
}

// byteAt returns the byte at i, or 0 at the text's end.
func (s *scanner) byteAt(i int) byte {
	if i < len(s.buf) {
		return s.buf[i]
	}
	return 0
}

// string validates the string that starts at i. plain is true if it has no escapes;
// its bytes are then its text. The branches share one pass over eight bytes at a time.
func (s *scanner) string(i int) (end int, plain bool) {
	buf, start := s.buf, i+1
	plain = true
	var seen uint64 // a high bit is set by a byte outside ASCII, possibly behind the string
	for i = start; ; {
		if i+8 <= len(buf) {
			word := binary.LittleEndian.Uint64(buf[i:])
			seen |= word
			special := specials(word)
			if special == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(special) / 8
		} else if i == len(buf) {
			return s.unexpected(i), false
		}
		switch c := buf[i]; {
		case c == '"':
			if seen&highBits != 0 && !utf8.Valid(buf[start:i]) {
				return s.fail(start, "invalid UTF-8"), false
			}
			return i + 1, plain
		case c == '\\':
			plain = false
			if i = s.escape(i); i == failed {
				return failed, false
			}
			for i+2 < len(buf) { // escapes often stand close together
				if buf[i] != '\\' && isPlain[buf[i]] {
					i++
				}
				if buf[i] != '\\' || !shortEscapes[buf[i+1]] {
					break
				}
				i += 2
			}
		case c < ' ':
			return s.fail(i, "control character in a string"), false
		default:
			seen |= uint64(c)
			i++
		}
	}
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// specials marks the bytes in word that end a run of plain text: quotes, backslashes
// and control characters. The lowest mark is exact; higher marks may be false, because
// of a borrow.
func specials(word uint64) uint64 {
	quote := word ^ '"'*lowBits
	backslash := word ^ '\\'*lowBits
	return ((word - ' '*lowBits) | (quote - lowBits) | (backslash - lowBits)) &^ word & highBits
}

// isPlain is true for ASCII characters that need no escape in a string.
var isPlain = func() (plain [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

// shortEscapes are the characters that form an escape with a backslash.
var shortEscapes = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escape validates the escape at i (RFC 8259, section 7). unescape checks whether
// surrogates are paired.
func (s *scanner) escape(i int) int {
	switch s.byteAt(i + 1) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if _, ok := hex4(s.buf[i+2:]); ok {
			return i + 6
		}
	}
	return s.fail(i, "bad escape")
}
