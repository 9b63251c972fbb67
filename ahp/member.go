package ahp

import (
	"bytes"
	"math"
	"strconv"
)

// A Member is a member of a JSON object that a reader asks for.
type Member struct {
	// Name is the key, after decoding. The reader sets it.
	Name string

	// Raw is the value as it stands in the object, nil when there is none.
	Raw []byte

	offset  int  // of Raw
	parent  bool // members of the value are wanted too
	lenient bool // it may be given twice: that is noted, and not refused
	twice   bool
}

// Members sets the Raw of each member in want from a raw JSON object, such as
// the Params that [Peek] returned. Keys that want does not name are ignored.
//
// It refuses with a [*FrameError] whatever Peek would refuse in a frame: what
// is not one valid JSON object, a named key that stands there twice. The Raw of
// want must be nil before, and means nothing after an error. The Raw values
// alias object; Members allocates only where a key has escapes.
func Members(object []byte, want []Member) error {
	s := scanner{buf: object}
	if err := s.document(want, nil); err != nil {
		return err
	}
	return nil
}

// Spelt is [Members], and refuses a key too that is another spelling of a named
// one: one that differs from it in case only. There are parsers that read both
// as one, so that they may see a value that was not looked at.
func Spelt(object []byte, want []Member) error {
	s := scanner{buf: object, spelling: true}
	if err := s.document(want, nil); err != nil {
		return err
	}
	if s.other != "" {
		return &FrameError{s.otherAt, strconv.Quote(s.other) + " in another spelling"}
	}
	return nil
}

// Offset is where Raw stands in the object that it was read from, in bytes.
func (m *Member) Offset() int { return m.offset }

// In returns the member as one of what the object or array is a member of that it
// stands in: its offset is there.
func (m Member) In(object Member) Member {
	m.offset += object.offset
	return m
}

// Elements returns the elements of a raw JSON array as members without a name;
// ok is false if it is none.
func Elements(raw []byte) (list []Member, ok bool) {
	s := scanner{buf: raw}
	if s.byteAt(0) != '[' {
		return nil, false
	}
	for i := 1; ; i++ { // behind the bracket, or a comma
		start, c := s.token(i)
		if c == ']' && list == nil {
			return list, true
		}
		end := s.value(start)
		if end == failed {
			return nil, false
		}
		list = append(list, Member{Raw: raw[start:end:end], offset: start})
		switch i, c = s.token(end); c {
		case ']':
			return list, true
		case ',':
		default:
			return nil, false
		}
	}
}

// Text decodes a raw JSON string, such as a [Member]'s. It reports false for
// anything else, and for a lone surrogate, which has no text.
func Text(raw []byte) (string, bool) {
	text, ok := decode(raw)
	return string(text), ok
}

// decode is Text without the copy, where nothing is escaped.
func decode(raw []byte) ([]byte, bool) {
	s := scanner{buf: raw}
	if s.byteAt(0) != '"' {
		return nil, false
	}
	end, plain := s.string(0)
	if end != len(raw) {
		return nil, false
	}
	inner := raw[1 : end-1 : end-1]
	if plain {
		return inner, true
	}
	return unescape(inner)
}

// text returns the text of a member that a scanner has read, nil when it is
// absent.
func (m *Member) text() ([]byte, *FrameError) {
	switch {
	case m.Raw == nil:
		return nil, nil
	case m.Raw[0] != '"':
		return nil, m.refuse("is not a string")
	}
	inner := m.Raw[1 : len(m.Raw)-1 : len(m.Raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, nil
	}
	text, ok := unescape(inner)
	if !ok {
		return nil, m.refuse("has a lone surrogate")
	}
	return text, nil
}

// texts returns the texts of a member that is an array of strings, nil when it
// is absent.
func (m *Member) texts() ([]string, *FrameError) {
	if m.Raw == nil {
		return nil, nil
	}
	elements, ok := Elements(m.Raw)
	if !ok {
		return nil, m.refuse("is not an array")
	}
	var list []string
	for _, e := range elements {
		text, ok := Text(e.Raw)
		if !ok {
			return nil, m.refuse("has an element that is not a string")
		}
		list = append(list, text)
	}
	return list, nil
}

// maxSafeInteger is the greatest integer that every JSON parser reads alike
// (RFC 8259, section 6).
const maxSafeInteger = 1<<53 - 1

// integer returns the value of a member that is an integer, however it is
// written (7, 7.0, 7e0), and 0 when it is absent.
func (m *Member) integer() (int64, *FrameError) {
	if m.Raw == nil {
		return 0, nil
	}
	if v, ok := digits(m.Raw); ok {
		return v, nil
	}
	f, ok := number(m.Raw)
	if !ok || f != math.Trunc(f) || math.Abs(f) > maxSafeInteger {
		return 0, m.refuse("is not an integer")
	}
	return int64(f), nil
}

// safeDigits is how many digits no integer beyond maxSafeInteger has.
const safeDigits = 15

// digits returns the value of a raw JSON number that is nothing but a few
// digits, as integers are written.
func digits(raw []byte) (v int64, ok bool) {
	if len(raw) == 0 || len(raw) > safeDigits || raw[0] == '0' && len(raw) > 1 {
		return 0, false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = 10*v + int64(c-'0')
	}
	return v, true
}

func (m *Member) refuse(what string) *FrameError {
	return &FrameError{m.offset, strconv.Quote(m.Name) + " " + what}
}

// number returns the value of a raw JSON number as a double, as JavaScript
// does: beyond the range of doubles it is an infinity.
func number(raw []byte) (float64, bool) {
	s := scanner{buf: raw}
	if s.number(0) != len(raw) {
		return 0, false
	}
	f, _ := strconv.ParseFloat(string(raw), 64) // can fail only by range, and then returns ±Inf
	return f, true
}

// unescape decodes the inside of a JSON string whose escapes are valid. It
// reports false for a surrogate that is not half of a pair.
func unescape(inner []byte) ([]byte, bool) {
	buffer := make([]byte, 0, len(inner)+unescapeRoom)
	text, _ := unescapeInto(&buffer, inner, 0, 0)
	return text, text != nil
}

// shortEscapeOf is what a backslash and a byte stand for: a quote, a backslash or a slash for itself.
var shortEscapeOf = func() (of [256]byte) {
	for c := range of {
		of[c] = byte(c)
	}
	of['b'], of['f'], of['n'], of['r'], of['t'] = '\b', '\f', '\n', '\r', '\t'
	return of
}()

// hex4 reads four hexadecimal digits.
func hex4(digits []byte) (r rune, ok bool) {
	if len(digits) < 4 {
		return 0, false
	}
	for _, c := range digits[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// MemberOf returns a member of a raw object that has it. It reports false for
// what is no object, or has the member twice.
func MemberOf(object []byte, name string) (Member, bool) {
	m := [...]Member{{Name: name}}
	if Members(object, m[:]) != nil || m[0].Raw == nil {
		return Member{}, false
	}
	return m[0], true
}

// TextOf returns a member of a raw object that is a string, or "".
func TextOf(object []byte, name string) string {
	m, _ := MemberOf(object, name)
	s, _ := Text(m.Raw)
	return s
}

// ElementsOf returns the elements of a raw array, none for anything else.
func ElementsOf(raw []byte) []Member {
	list, _ := Elements(raw)
	return list
}

// IsObject reports whether a raw value is an object.
func IsObject(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }

// IsNone reports whether a raw value is absent or null, as the origin and the
// rejectionReason are of an action that is the host's own word.
func IsNone(raw []byte) bool { return raw == nil || string(raw) == "null" }

// Texts decodes a raw JSON array of strings; ok is false if it is none.
func Texts(raw []byte) (list []string, ok bool) {
	m := Member{Raw: raw}
	list, err := m.texts()
	return list, err == nil
}
