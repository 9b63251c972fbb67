package ahp

import (
	"encoding/binary"
	"strconv"
)

// A Skimmer reads the envelope of a frame that is too long to keep, while its bytes
// arrive. It keeps some tens of KiB at most. The zero Skimmer is ready for a new frame.
//
// It distinguishes the frame's own keys from nested keys, in any order. It refuses the
// same ids, methods and top-level channels as [Peek], and long ones. It does not validate
// the rest, because the rest is not passed on.
type Skimmer struct {
	state  skimState
	depth  int  // open objects and arrays
	inText bool // in a string
	escape bool // behind a backslash in a string

	key    []byte // raw key of the current member
	wanted bool   // the key is in skimmed
	keep   bool   // the value is kept
	value  []byte // the raw value
	envel  []byte // found members, as the text of a small frame without its end
	err    *FrameError
	size   int
}

// A skimState is the position outside of nested values. Inside of them, depth and
// inText are the position.
type skimState uint8

const (
	skimStart skimState = iota // before the frame
	skimFirst                  // before a key, or the end
	skimKey                    // before a key
	skimInKey
	skimColon
	skimValue  // before a value
	skimInside // in a string, object or array
	skimScalar // in a different value
	skimComma  // behind a value
	skimEnd    // behind the frame
)

// Bounds of a kept member: real keys, ids and methods are much shorter.
const (
	maxSkimKey   = 6 * len("channel") // written with escapes only
	maxSkimValue = 4 << 10
)

// skimmed maps the recorded keys to true if their values are kept.
var skimmed = map[string]bool{"id": true, "method": true, "channel": true, "result": false, "error": false}

// Size returns how many bytes were received.
func (s *Skimmer) Size() int { return s.size }

// MaxSkim is the largest frame that can be skimmed, in bytes.
const MaxSkim = 4 << 30

// Over reports whether Envelope will fail, possibly before the frame's end.
func (s *Skimmer) Over() bool { return s.err != nil }

// Write implements [io.Writer]. It never fails.
func (s *Skimmer) Write(p []byte) (int, error) {
	if s.size > MaxSkim-len(p) {
		s.fail(MaxSkim, "too long")
	}
	for i := 0; i < len(p) && s.err == nil; {
		if s.inText {
			i += s.text(p[i:])
			continue
		}
		s.token(p[i], s.size+i)
		i++
	}
	s.size += len(p)
	return len(p), nil
}

// text consumes a string's bytes, and returns their count.
func (s *Skimmer) text(p []byte) int {
	n := 0
	for n < len(p) {
		if s.escape {
			s.escape = false
			n++
			continue
		}
		n += plainRun(p[n:])
		if n == len(p) {
			break
		}
		n++
		if p[n-1] == '"' {
			s.inText = false
			break
		}
		s.escape = true
	}
	s.note(p[:n])
	if !s.inText {
		s.textEnded()
	}
	return n
}

// plainRun counts the bytes before a quote or backslash.
func plainRun(p []byte) (n int) {
	for n < len(p) && p[n] != '"' && p[n] != '\\' {
		n++
		for n+8 <= len(p) && specials(binary.LittleEndian.Uint64(p[n:])) == 0 {
			n += 8
		}
	}
	return n
}

// note keeps a key's or a wanted value's bytes.
func (s *Skimmer) note(p []byte) {
	switch {
	case s.state == skimInKey && len(s.key) <= maxSkimKey+2:
		s.key = append(s.key, p[:min(len(p), maxSkimKey+3-len(s.key))]...)
	case s.state > skimValue && s.keep:
		if len(s.value)+len(p) > maxSkimValue {
			s.fail(s.size, "an id, method or channel is too long")
			return
		}
		s.value = append(s.value, p...)
	}
}

func (s *Skimmer) textEnded() {
	switch {
	case s.state == skimInKey:
		s.state = skimColon
		s.keyEnded()
	case s.depth == 1:
		s.valueEnded()
	}
}

// keyEnded checks whether a key is wanted.
func (s *Skimmer) keyEnded() {
	s.wanted, s.keep = false, false
	if len(s.key) > maxSkimKey+2 {
		return
	}
	key, ok := unescape(s.key[1 : len(s.key)-1])
	if ok {
		s.keep, s.wanted = skimmed[string(key)]
	}
}

// valueEnded records a wanted member.
func (s *Skimmer) valueEnded() {
	s.state = skimComma
	if !s.wanted {
		return
	}
	if len(s.envel) > 4*maxSkimValue { // only duplicate keys can take so much
		s.fail(s.size, "too many ids, methods or channels")
		return
	}
	if s.envel == nil {
		s.envel = append(s.envel, '{')
	} else {
		s.envel = append(s.envel, ',')
	}
	s.envel = append(append(s.envel, s.key...), ':')
	if !s.keep {
		s.value = append(s.value[:0], "null"...)
	}
	s.envel = append(s.envel, s.value...)
	s.value = s.value[:0]
}

// token consumes a byte outside strings. Each state of the Skimmer has its branch.
func (s *Skimmer) token(c byte, at int) {
	if s.state == skimScalar {
		switch c {
		case ',', '}', ' ', '\t', '\n', '\r':
			s.valueEnded()
		default:
			s.note([]byte{c})
			return
		}
	}
	if s.state == skimInside {
		s.inside(c)
		return
	}
	switch c {
	case ' ', '\t', '\n', '\r':
		return
	}
	switch {
	case s.state == skimStart && c == '{':
		s.depth, s.state = 1, skimFirst
	case (s.state == skimFirst || s.state == skimKey) && c == '"':
		s.state, s.inText = skimInKey, true
		s.key = append(s.key[:0], c)
	case s.state == skimColon && c == ':':
		s.state = skimValue
	case s.state == skimValue:
		s.begin(c)
	case s.state == skimComma && c == ',':
		s.state = skimKey
	case (s.state == skimComma || s.state == skimFirst) && c == '}':
		s.depth, s.state = 0, skimEnd
	default:
		s.fail(at, "unexpected byte")
	}
}

func (s *Skimmer) begin(c byte) {
	s.value = s.value[:0]
	s.state = skimInside
	switch c {
	case '"':
		s.inText = true
	case '{', '[':
		s.depth++
	default:
		s.state = skimScalar
	}
	s.note([]byte{c})
}

// inside consumes a byte in an object or array.
func (s *Skimmer) inside(c byte) {
	s.note([]byte{c})
	switch c {
	case '"':
		s.inText = true
	case '{', '[':
		s.depth++
	case '}', ']':
		if s.depth--; s.depth == 1 {
			s.valueEnded()
		}
	}
}

func (s *Skimmer) fail(at int, reason string) {
	if s.err == nil {
		s.err = &FrameError{at, reason}
	}
}

// Envelope returns the complete frame's Kind, ID and Method, and the Channel from the
// top level. An error is a [*FrameError].
func (s *Skimmer) Envelope() (Envelope, error) {
	switch {
	case s.err != nil:
		return Envelope{}, s.err
	case s.state != skimEnd:
		return Envelope{}, &FrameError{s.size, "unexpected end"}
	case s.envel == nil:
		return Envelope{}, &FrameError{0, "not a JSON-RPC request, notification or response"}
	}
	env, err := Peek(append(s.envel, '}'))
	env.Result, env.Error = nil, nil
	return env, err
}

// AppendTooLong appends to dst the error response to a request, if the request or its
// response is too long to pass. env belongs to the long message.
func AppendTooLong(dst []byte, env *Envelope, size, limit int) []byte {
	what := env.Kind.String()
	message := "the " + what + " is " + strconv.Itoa(size) + " bytes long; at most " + strconv.Itoa(limit) + " pass"
	data := `{"bytes":` + strconv.Itoa(size) + `,"limit":` + strconv.Itoa(limit) + `}`
	dst = AppendError(dst, env.ID, CodeInternalError, message, []byte(data))
	if env.Channel != nil {
		dst = AppendChannel(dst, env.Channel)
	}
	return dst
}
