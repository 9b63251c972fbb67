package ahp

import (
	"bytes"
	"fmt"
)

// MaxDepth is how many objects and arrays may be nested in a frame, the frame
// itself included. JSON.parse and encoding/json accept more, and real frames
// have a dozen.
const MaxDepth = 1000

// A Kind tells what a JSON-RPC 2.0 message is (sections 4, 4.1 and 5).
type Kind uint8

// The kinds of messages. The zero Kind is none of them.
const (
	Request      Kind = iota + 1 // has an id and a method, and gets a response
	Response                     // answers the request with its id
	Notification                 // has a method but no id
)

// String returns the kind in lower case, for logs.
func (k Kind) String() string {
	switch k {
	case Request:
		return "request"
	case Response:
		return "response"
	case Notification:
		return "notification"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// An Envelope is what [Peek] reads of a frame. Its slices alias the frame,
// except a Method or Channel that was written with JSON escapes.
type Envelope struct {
	Kind Kind

	// ID is the raw id: a JSON number, a string with its quotes, or null. It
	// is nil for a notification. Compare ids with SameID.
	ID []byte

	// Method is the text of the method, nil for a response.
	Method []byte

	// Channel is the text of the channel URI, nil when there is none: most
	// responses have none, and a few of the requests and notifications that
	// real hosts send.
	Channel []byte

	// Params, Result and Error are raw JSON values, nil when absent.
	Params, Result, Error []byte

	// Said is what params say of an action.
	Said Said

	// Misspelt reports a key that differs in case only from one that Peek reads,
	// where it reads it: parsers that do not mind case may read that one.
	Misspelt bool
}

// Said is the rest of an action's params, {channel, action, serverSeq,
// origin?}: raw values, nil when absent. All are nil if params do not name the
// channel themselves, or have one of these members twice: what parsers do not
// read alike says nothing.
type Said struct {
	Action, ServerSeq, Origin []byte

	// Type is the text of the action's type, nil when it is none. Of several,
	// it is the first: whoever acts on it looks for others.
	Type []byte
}

// MayBeOf reports whether the action may be of those whose types begin with a
// prefix, such as "session/": one whose type is not known may.
func (s *Said) MayBeOf(prefix string) bool {
	return s.Type == nil || bytes.HasPrefix(s.Type, []byte(prefix))
}

// typeOf returns the text of an action's type, which most hosts write first.
func typeOf(action []byte) (text []byte) {
	Values(action, func(key, value []byte) bool {
		if string(key) != "type" {
			return true
		}
		text, _ = decode(value)
		return false
	})
	return text
}

// Seq returns the serverSeq, 0 when it is absent. It refuses with a
// [*FrameError] what is not an integer that all parsers read alike.
func (s *Said) Seq() (int64, error) {
	m := Member{Name: "serverSeq", Raw: s.ServerSeq}
	seq, err := m.integer()
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// A FrameError says why a frame, or a part of it, is refused. All of them
// lead to the same close code, CloseBadMessage.
type FrameError struct {
	// Offset is where the rule was found broken, in bytes from the start of
	// what was read: the frame for Peek, the raw value for the others.
	Offset int

	// Reason names the rule. It quotes nothing from the frame: of keys, it
	// names only those that the reader asked for.
	Reason string
}

// Error returns the offset and the reason.
func (e *FrameError) Error() string {
	return fmt.Sprintf("byte %d: %s", e.Offset, e.Reason)
}

// Where Peek finds what it reads.
const (
	topID = iota
	topMethod
	topParams
	topResult
	topError
	topChannel
)

// The same in params.
const (
	inChannel = iota
	inAction
	inServerSeq
	inOrigin
)

// Peek validates a frame and reads its envelope. The package documentation
// lists what it reads and what it refuses; an error is a [*FrameError].
//
// Peek reads the frame once and keeps nothing. It does not allocate, unless
// the frame is refused, or an id, a method, a channel or a key next to one
// of these was written with JSON escapes.
func Peek(frame []byte) (e Envelope, _ error) {
	params := [...]Member{
		inChannel:   {Name: "channel"},
		inAction:    {Name: "action", lenient: true},
		inServerSeq: {Name: "serverSeq", lenient: true},
		inOrigin:    {Name: "origin", lenient: true},
	}
	top := [...]Member{
		topID:      {Name: "id"},
		topMethod:  {Name: "method"},
		topParams:  {Name: "params", parent: true},
		topResult:  {Name: "result"},
		topError:   {Name: "error"},
		topChannel: {Name: "channel"},
	}
	s := scanner{buf: frame, spelling: true}
	if err := s.document(top[:], params[:]); err != nil {
		return Envelope{}, err
	}
	e.Misspelt = s.other != ""
	e.ID, e.Params, e.Result, e.Error = top[topID].Raw, top[topParams].Raw, top[topResult].Raw, top[topError].Raw
	if err := e.setTexts(&top[topMethod], &top[topChannel], &params[inChannel]); err != nil {
		return Envelope{}, err
	}
	if err := checkID(&top[topID]); err != nil {
		return Envelope{}, err
	}
	if err := checkParams(&top[topParams]); err != nil {
		return Envelope{}, err
	}
	if e.Kind = e.kind(); e.Kind == 0 {
		return Envelope{}, &FrameError{0, "not a JSON-RPC request, notification or response"}
	}
	e.setSaid(params[:])
	return e, nil
}

// setSaid sets what params say of an action.
func (e *Envelope) setSaid(params []Member) {
	channel, action, seq, origin := &params[inChannel], &params[inAction], &params[inServerSeq], &params[inOrigin]
	if channel.Raw != nil && !action.twice && !seq.twice && !origin.twice {
		e.Said = Said{action.Raw, seq.Raw, origin.Raw, typeOf(action.Raw)}
	}
}

// setTexts sets the members of the envelope that are decoded.
func (e *Envelope) setTexts(method, topChannel, paramsChannel *Member) (err *FrameError) {
	if e.Method, err = method.text(); err != nil {
		return err
	}
	if e.Channel, err = paramsChannel.text(); err != nil {
		return err
	}
	if topChannel.Raw == nil {
		return nil
	}
	other, err := topChannel.text()
	if err != nil {
		return err
	}
	if e.Channel != nil && !bytes.Equal(e.Channel, other) {
		return &FrameError{topChannel.offset, `"channel" and "params.channel" differ`}
	}
	e.Channel = other
	return nil
}

// kind tells the kind from the keys that the frame has, or 0.
func (e *Envelope) kind() Kind {
	answers := 0
	if e.Result != nil {
		answers++
	}
	if e.Error != nil {
		answers++
	}
	switch {
	case e.Method != nil && answers == 0 && e.ID != nil:
		return Request
	case e.Method != nil && answers == 0:
		return Notification
	case e.Method == nil && answers == 1 && e.ID != nil:
		return Response
	}
	return 0
}

// checkID refuses an id that is neither number, string nor null (JSON-RPC 2.0,
// section 4), and one whose text is not the same for every parser.
func checkID(id *Member) *FrameError {
	if id.Raw == nil {
		return nil
	}
	switch c := id.Raw[0]; {
	case c == '"':
		_, err := id.text()
		return err
	case c == '-', '0' <= c && c <= '9', c == 'n':
		return nil
	}
	return &FrameError{id.offset, `"id" is not a number, a string or null`}
}

// checkParams refuses params that are no structure (JSON-RPC 2.0, section
// 4.2). Null passes: libraries write it for "no params", and no host can read
// a channel from it.
func checkParams(params *Member) *FrameError {
	if params.Raw == nil {
		return nil
	}
	switch params.Raw[0] {
	case '{', '[', 'n':
		return nil
	}
	return &FrameError{params.offset, `"params" is not an object or array`}
}
