package ahp_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
)

// surrogateEscape matches frames that may have a lone surrogate. For these, reference is no
// measure, because encoding/json replaces it by U+FFFD.
var surrogateEscape = regexp.MustCompile(`(?i)\\ud[89a-f]`)

// FuzzPeek compares Peek with reference for any input. Peek must not change its input, and
// appending to a returned part must not change it either.
func FuzzPeek(f *testing.F) {
	for _, frame := range corpus(f) {
		f.Add(frame)
	}
	for _, test := range refusals {
		f.Add([]byte(strings.Replace(test.in, "¶", "", 1)))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		got, err := ahp.Peek(frame)
		if !bytes.Equal(frame, before) {
			t.Fatalf("Peek changed its input %q to %q; want it as it was", before, frame)
		}
		if err != nil {
			checkRefusal(t, frame, err)
		}
		want, ok := reference(frame)
		switch {
		case err == nil && !ok:
			t.Fatalf("Peek(%q) = %+v; want a refusal", frame, got)
		case err != nil && ok && !surrogateEscape.Match(frame):
			t.Fatalf("Peek(%q) = %v; want %+v", frame, err, want)
		case err != nil:
			return
		}
		if surrogateEscape.Match(frame) {
			want.Said.Type = got.Said.Type
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("Peek(%q) (-want +got):\n%s", frame, diff)
		}
		for _, part := range [][]byte{got.ID, got.Method, got.Channel, got.Params, got.Result, got.Error,
			got.Said.Action, got.Said.ServerSeq, got.Said.Origin, got.Said.Type} {
			_ = append(part, '!')
		}
		if !bytes.Equal(frame, before) {
			t.Fatalf("append to a part of %q has changed it to %q; want a copy", before, frame)
		}
	})
}

// checkRefusal fails unless err is a reason that Peek may have, at an offset in the frame.
func checkRefusal(t *testing.T, frame []byte, err error) {
	t.Helper()
	var refused *ahp.FrameError
	if !errors.As(err, &refused) {
		t.Fatalf("Peek(%q): %T; want a *FrameError", frame, err)
	}
	if !slices.Contains(reasons, refused.Reason) {
		t.Fatalf("Peek(%q) refuses with the unknown reason %q; want a listed one", frame, refused.Reason)
	}
	if refused.Offset < 0 || refused.Offset > len(frame) {
		t.Fatalf("Peek(%q) refuses at the offset %d; want one in the frame", frame, refused.Offset)
	}
}

// reference reads a frame with encoding/json, by the rules in the package's documentation. ok is
// false if Peek must refuse the frame.
func reference(frame []byte) (e ahp.Envelope, ok bool) {
	if !utf8.Valid(frame) || !json.Valid(frame) || depth(frame) > ahp.MaxDepth {
		return e, false
	}
	top, ok := membersOf(frame, "id", "method", "params", "result", "error", "channel")
	if !ok {
		return e, false
	}
	params := map[string]json.RawMessage{}
	switch first(top["params"]) {
	case '{':
		if params, ok = membersOf(top["params"], "channel"); !ok {
			return e, false
		}
	case '[', 'n', 0:
	default:
		return e, false
	}
	if !bytes.ContainsRune([]byte("\x00\"n-0123456789"), rune(first(top["id"]))) {
		return e, false
	}
	method, ok1 := textOf(top["method"])
	channel, ok2 := textOf(params["channel"])
	topChannel, ok3 := textOf(top["channel"])
	if !ok1 || !ok2 || !ok3 || channel != nil && topChannel != nil && !bytes.Equal(channel, topChannel) {
		return e, false
	}
	if channel == nil {
		channel = topChannel
	}
	e = ahp.Envelope{ID: top["id"], Method: method, Channel: channel,
		Params: top["params"], Result: top["result"], Error: top["error"]}
	if params["channel"] != nil {
		e.Said = saidOf(top["params"])
	}
	e.Misspelt = misspelt(frame, "id", "method", "params", "result", "error", "channel") ||
		first(top["params"]) == '{' && misspelt(top["params"], "channel", "action", "serverSeq", "origin")
	switch has(e.Method) + has(e.ID) + has(e.Result) + has(e.Error) {
	case "++--":
		e.Kind = ahp.Request
	case "+---":
		e.Kind = ahp.Notification
	case "-++-", "-+-+":
		e.Kind = ahp.Response
	default:
		return e, false
	}
	return e, true
}

// saidOf reads the params of an action with encoding/json.
func saidOf(params []byte) (s ahp.Said) {
	m, ok := membersOf(params, "action", "serverSeq", "origin")
	if !ok {
		return s
	}
	s = ahp.Said{Action: m["action"], ServerSeq: m["serverSeq"], Origin: m["origin"]}
	tokens := json.NewDecoder(bytes.NewReader(s.Action))
	if token, err := tokens.Token(); err != nil || token != json.Delim('{') {
		return s
	}
	for tokens.More() {
		var value json.RawMessage
		key, err := tokens.Token()
		if err != nil || tokens.Decode(&value) != nil {
			return s
		}
		if key == "type" {
			s.Type, _ = textOf(value)
			return s
		}
	}
	return s
}

func has(part []byte) string {
	if part == nil {
		return "-"
	}
	return "+"
}

// first returns the first byte of a raw value, or 0 if it is empty.
func first(raw []byte) byte {
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// depth returns how deeply a valid JSON text is nested.
func depth(text []byte) (deepest int) {
	tokens := json.NewDecoder(bytes.NewReader(text))
	for open := 0; ; {
		token, err := tokens.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			open++
			deepest = max(deepest, open)
		case json.Delim('}'), json.Delim(']'):
			open--
		}
	}
}

// membersOf returns the members of a valid JSON text that have these names. It returns false if the
// text is no object, or has such a name twice.
func membersOf(text []byte, names ...string) (map[string]json.RawMessage, bool) {
	tokens := json.NewDecoder(bytes.NewReader(text))
	if token, err := tokens.Token(); err != nil || token != json.Delim('{') {
		return nil, false
	}
	members := map[string]json.RawMessage{}
	for tokens.More() {
		var value json.RawMessage
		key, err := tokens.Token()
		if err != nil || tokens.Decode(&value) != nil {
			return nil, false
		}
		name := key.(string)
		if !slices.Contains(names, name) {
			continue
		}
		if members[name] != nil {
			return nil, false
		}
		members[name] = value
	}
	return members, true
}

// textOf decodes a raw string. It returns nil for an absent value, and false for a value that is no
// string.
func textOf(raw json.RawMessage) ([]byte, bool) {
	var text string
	if raw == nil {
		return nil, true
	}
	if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return nil, false
	}
	return []byte(text), true
}

// misspelt reports whether an object has a key that differs from a name only in case, so that
// encoding/json would read it as the name.
func misspelt(object []byte, names ...string) bool {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(object, &keys); err != nil {
		return false
	}
	for key := range keys {
		for _, name := range names {
			if key != name && strings.EqualFold(key, name) {
				return true
			}
		}
	}
	return false
}
