package ahp

import (
	"bytes"
	"math"
	"strconv"
)

// A Member is a member of a JSON object, or an element of an array.
type Member struct {
	// Name is the decoded key, set by the caller of Members; "" for an element.
	Name string

	// Raw is the value as written, or nil.
	Raw []byte

	offset  int  // of Raw
	parent  bool // members of the value are requested too
	lenient bool // a duplicate is recorded, not refused
	twice   bool
}

// Members sets the Raw field of each member in want from a raw JSON object, such as
// Params from [Peek]. It ignores keys that want does not name.
//
// It refuses with a [*FrameError] everything Peek would refuse in a frame: an invalid
// JSON object, or a duplicate named key. Raw must be nil before the call, and is
// undefined after an error. The values alias object; Members allocates only for keys
// with escapes.
func Members(object []byte, want []Member) error {
	s := scanner{buf: object}
	if err := s.document(want, nil); err != nil {
		return err
	}
	return nil
}

// Spelt is like [Members], and also refuses keys that differ only in case from a named
// key. Case-insensitive parsers confuse the two, and could read a value that was never
// checked.
func Spelt(object []byte, want []Member) error {
	s := scanner{buf: object, spelling: true}
	if err := s.document(want, nil); err != nil {
		return err
	}
	if s.other != "" {
		return &FrameError{s.otherAt, strconv.Quote(s.other) + " in a second spelling"}
	}
	return nil
}

// Offset returns Raw's position, in bytes, in its object or array or, after [Member.In],
// in the outer object.
func (m *Member) Offset() int { return m.offset }

// In returns the member with its offset relative to the outer object that contains
// object.
func (m Member) In(object Member) Member {
	m.offset += object.offset
	return m
}

// Elements returns a raw JSON array's elements as members without names. ok is false
// if raw is no array.
func Elements(raw []byte) (list []Member, ok bool) {
	s := scanner{buf: raw}
	if s.byteAt(0) != '[' {
		return nil, false
	}
	for i := 1; ; i++ { // behind the bracket or a comma
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

// Text decodes a raw JSON string, such as a [Member]'s value. It returns false for any
// other value, and for a string with a lone surrogate, which no text can represent.
func Text(raw []byte) (string, bool) {
	text, ok := decode(raw)
	return string(text), ok
}

// decode is Text, but does not copy a string without escapes.
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

// text returns a scanned member's text, or nil if it is absent.
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

// maxSafeInteger is the greatest integer every JSON parser reads exactly (RFC 8259,
// section 6).
const maxSafeInteger = 1<<53 - 1

// integer returns an integer member's value in any notation (7, 7.0, 7e0), and 0 if it
// is absent.
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

// Integer returns the value of a raw integer in any notation (7, 7.0, 7e0), and 0 if it is absent. It returns a
// [*FrameError] for a value that some parser does not read as this integer.
func Integer(raw []byte) (int64, error) {
	m := Member{Raw: raw}
	v, err := m.integer()
	if err != nil {
		return 0, err
	}
	return v, nil
}

// IntegerOf is [Integer] without an error. It returns 0 for a value that is not an integer.
func IntegerOf(raw []byte) int64 {
	v, _ := Integer(raw)
	return v
}

// Int is an integer that a JSON decoder reads in any notation, like [IntegerOf].
type Int int64

// UnmarshalJSON sets n to 0 for a value that is not an integer.
func (n *Int) UnmarshalJSON(raw []byte) error {
	*n = Int(IntegerOf(raw))
	return nil
}

// safeDigits is the most digits with which every integer is at most maxSafeInteger.
const safeDigits = 15

// digits returns a raw JSON number's value if the number consists of at most
// safeDigits digits, which is the usual form.
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

// number returns a raw JSON number as a double, like JavaScript: beyond the range it
// is an infinity.
func number(raw []byte) (float64, bool) {
	s := scanner{buf: raw}
	if s.number(0) != len(raw) {
		return 0, false
	}
	f, _ := strconv.ParseFloat(string(raw), 64) // can only fail by range, and then returns ±Inf
	return f, true
}

// unescape decodes the inside of a JSON string with valid escapes. It returns false
// for a surrogate outside a pair.
func unescape(inner []byte) ([]byte, bool) {
	buffer := make([]byte, 0, len(inner)+unescapeRoom)
	text, _ := unescapeInto(&buffer, inner, 0, 0)
	return text, text != nil
}

// shortEscapeOf maps the byte after a backslash to the character that the escape
// stands for.
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

// MemberOf returns the member at a path of names, with its place in the raw object. It
// returns false if an object is invalid, or a member is absent or duplicate.
func MemberOf(object []byte, path ...string) (Member, bool) {
	at := Member{Raw: object}
	for _, name := range path {
		m := [...]Member{{Name: name}}
		if Members(at.Raw, m[:]) != nil || m[0].Raw == nil {
			return Member{}, false
		}
		at = m[0].In(at)
	}
	return at, true
}

// RawOf returns the value of [MemberOf], or nil.
func RawOf(object []byte, path ...string) []byte {
	m, _ := MemberOf(object, path...)
	return m.Raw
}

// TextOf returns the text at a path of names in a raw object, or "".
func TextOf(object []byte, path ...string) string {
	s, _ := Text(RawOf(object, path...))
	return s
}

// WordsOf returns the text of a raw string, or of a raw object with the member markdown,
// or "".
func WordsOf(raw []byte) string {
	if text, ok := Text(raw); ok {
		return text
	}
	return TextOf(raw, "markdown")
}

// ElementsOf returns a raw array's elements, and none for any other value.
func ElementsOf(raw []byte) []Member {
	list, _ := Elements(raw)
	return list
}

// IsObject reports whether a raw value is an object.
func IsObject(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }

// IsNone reports whether a raw value is absent or null. In the host's own actions,
// this holds for origin and rejectionReason.
func IsNone(raw []byte) bool { return raw == nil || string(raw) == "null" }

// Texts decodes a raw JSON array of strings, which may be absent; ok is false for any
// other value.
func Texts(raw []byte) (list []string, ok bool) {
	if raw == nil {
		return nil, true
	}
	elements, ok := Elements(raw)
	for _, e := range elements {
		text, ok := Text(e.Raw)
		if !ok {
			return nil, false
		}
		list = append(list, text)
	}
	return list, ok
}
