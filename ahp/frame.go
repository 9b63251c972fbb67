package ahp

import (
	"bytes"
	"fmt"
)

// MaxDepth bounds the nesting depth of objects and arrays in a frame, including the
// frame itself. JSON.parse and encoding/json accept more, and real frames have a
// dozen.
const MaxDepth = 1000

// A Kind is the kind of a JSON-RPC 2.0 message (sections 4, 4.1 and 5).
type Kind uint8

// The kinds. The zero Kind is invalid.
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

// An Envelope holds the parts that [Peek] reads from a frame. Its slices alias the
// frame, except decoded texts with JSON escapes.
type Envelope struct {
	Kind Kind

	// ID is the raw id: a JSON number, a string with its quotes, or null. It is nil
	// for a notification. Compare ids with SameID.
	ID []byte

	// Method is the method's text, nil for a response.
	Method []byte

	// Channel is the channel URI, or nil. Most responses have none, and real hosts
	// also omit it in some requests and notifications.
	Channel []byte

	// Params, Result and Error are raw JSON values, nil when absent.
	Params, Result, Error []byte

	// Said holds an action's members in params.
	Said Said

	// Misspelt reports a key that differs only in case from a key Peek reads:
	// case-insensitive parsers may read it.
	Misspelt bool
}

// Said holds the raw members of an action's params, {channel, action, serverSeq,
// origin?}; absent members are nil. All are nil if the params lack the channel or have
// a duplicate member, because parsers read duplicates differently.
type Said struct {
	Action, ServerSeq, Origin []byte

	// Type is the action's type, or nil. For a duplicate type, it is the first one: a
	// caller that depends on it must check for duplicates.
	Type []byte
}

// MayBeOf reports whether the action's type may begin with a prefix, such as
// "session/". It returns true if the type is unknown.
func (s *Said) MayBeOf(prefix string) bool {
	return s.Type == nil || bytes.HasPrefix(s.Type, []byte(prefix))
}

// typeOf returns the action's type. It reads the members in order, because most hosts
// write the type first.
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

// Seq returns the serverSeq, or 0 if it is absent. It returns a [*FrameError] for a
// value that some parser does not read as this integer.
func (s *Said) Seq() (int64, error) {
	m := Member{Name: "serverSeq", Raw: s.ServerSeq}
	seq, err := m.integer()
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// A FrameError is the reason why a frame, or a part of it, is refused.
type FrameError struct {
	// Offset is the error's position in the text that was read, in bytes.
	Offset int

	// Reason names the rule. It quotes nothing from the frame except keys: those the
	// caller asked for and, in AllMembers, a duplicate key.
	Reason string
}

// Error returns the offset and the reason.
func (e *FrameError) Error() string {
	return fmt.Sprintf("byte %d: %s", e.Offset, e.Reason)
}

// Indexes of the members that Peek reads.
const (
	topID = iota
	topMethod
	topParams
	topResult
	topError
	topChannel
)

// Indexes of the members that Peek reads in params.
const (
	inChannel = iota
	inAction
	inServerSeq
	inOrigin
)

// Peek validates a frame and reads its envelope. The package documentation lists the
// members it reads and the frames it refuses; an error is a [*FrameError].
//
// Peek reads the frame once and keeps nothing. It allocates only if the frame is
// refused, or if a text or key that it decodes has JSON escapes.
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

func (e *Envelope) setSaid(params []Member) {
	channel, action, seq, origin := &params[inChannel], &params[inAction], &params[inServerSeq], &params[inOrigin]
	if channel.Raw != nil && !action.twice && !seq.twice && !origin.twice {
		e.Said = Said{action.Raw, seq.Raw, origin.Raw, typeOf(action.Raw)}
	}
}

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

// kind returns the kind according to the frame's keys, or 0.
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

// checkID refuses an id that is neither number, string nor null (JSON-RPC 2.0, section
// 4), or whose text is ambiguous.
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

// checkParams refuses scalar params (JSON-RPC 2.0, section 4.2). Null passes:
// libraries write it for "no params", and no host can read a channel from it.
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
