package ahp

import (
	"encoding/binary"
	"strconv"
)

// A Skimmer reads the envelope of a frame that is too long to keep, as its bytes
// come. It holds a few KiB of it at most. The zero Skimmer is at the beginning.
//
// It knows the frame's own keys from those of anything inside it, wherever they
// stand, and refuses what [Peek] refuses of them. What is between is not
// validated, because it goes nowhere.
type Skimmer struct {
	state  skimState
	depth  int  // open objects and arrays
	inText bool // in a string
	escape bool // behind a backslash in it

	key    []byte // raw, of the member that is read
	wanted bool   // it is one of skimmed
	keep   bool   // and its value is kept
	value  []byte // of that, raw
	envel  []byte // members that were found, as the text of a small frame without its end
	err    *FrameError
	size   int
}

// A skimState is where the frame's own text stands. What is inside a value is
// told by depth and inText.
type skimState uint8

const (
	skimStart skimState = iota // before the frame
	skimFirst                  // before a key, or the end
	skimKey                    // before a key
	skimInKey
	skimColon
	skimValue  // before a value
	skimInside // in a value that is a string, an object or an array
	skimScalar // in another one
	skimComma  // behind a value
	skimEnd    // behind the frame
)

// Bounds of what is kept of a member that is read: nobody has keys, ids or
// methods as long as that.
const (
	maxSkimKey   = 6 * len("channel") // all of it written with escapes
	maxSkimValue = 4 << 10
)

// skimmed are the keys that tell what a frame is, and whether their values are
// kept. Of params nothing is.
var skimmed = map[string]bool{"id": true, "method": true, "channel": true, "result": false, "error": false}

// Size is how many bytes have come.
func (s *Skimmer) Size() int { return s.size }

// MaxSkim is how long a frame may be at most to be skimmed, in bytes.
const MaxSkim = 4 << 30

// Over reports whether it is clear before the end that Envelope fails.
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

// text takes bytes of a string, and returns how many.
func (s *Skimmer) text(p []byte) int {
	n := 0
	for n < len(p) {
		if s.escape {
			s.escape = false
			n++
			continue
		}
		n += plain(p[n:])
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

// plain returns how many bytes come before a quote or a backslash.
func plain(p []byte) (n int) {
	for n < len(p) && p[n] != '"' && p[n] != '\\' {
		n++
		for n+8 <= len(p) && specials(binary.LittleEndian.Uint64(p[n:])) == 0 {
			n += 8
		}
	}
	return n
}

// note keeps bytes of a key, or of a value that is wanted.
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

// keyEnded looks whether a key is wanted.
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

// valueEnded notes a member that is wanted.
func (s *Skimmer) valueEnded() {
	s.state = skimComma
	if !s.wanted {
		return
	}
	if len(s.envel) > 4*maxSkimValue { // of which some keys are the same
		s.fail(s.size, "an id, method or channel is given too often")
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

// token takes a byte outside of strings.
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

// begin begins a value.
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

// inside takes a byte of an object or array.
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

// Envelope returns the Kind, ID and Method of the frame, and the Channel if that
// stands at the top level, once all of it has come. An error is a
// [*FrameError].
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

// AppendTooLong appends to dst the error response that answers a request, where
// it or its response is too long to pass: env is that of either.
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
