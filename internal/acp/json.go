package acp

import (
	"bytes"
	"encoding/json"
	"errors"
)

// A Capability has no members that either end reads. A pointer that is not nil
// means that the peer has the capability.
type Capability struct{}

// Decode reads a JSON value into v. It leaves out members of a wrong type, and fails
// for text that is not JSON.
func Decode(text json.RawMessage, v any) error {
	if len(text) == 0 {
		text = json.RawMessage("null")
	}
	err := json.Unmarshal(text, v)
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nil
	}
	return err
}

// UpdateKind returns the kind of a session's update, such as [UpdateToolCall].
func UpdateKind(update json.RawMessage) string {
	var u struct {
		Kind string `json:"sessionUpdate"`
	}
	_ = Decode(update, &u) // an unreadable update has no kind
	return u.Kind
}

// Update returns the text of an update. v is the kind's type, such as [ToolCallUpdate].
func Update(kind string, v any) (json.RawMessage, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return insert(text, "sessionUpdate", kind)
}

// insert adds a member with a text to the text of an object.
func insert(object []byte, key, value string) ([]byte, error) {
	member, err := json.Marshal(map[string]string{key: value})
	if err != nil || bytes.Equal(object, []byte("{}")) {
		return member, err
	}
	member[len(member)-1] = ','
	return append(member, object[1:]...), nil
}

// withRequired encodes a struct, and adds the required members that the encoder omits
// as empty.
func withRequired(v any, required []string) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil || len(required) == 0 {
		return text, err
	}
	var present map[string]json.RawMessage
	if err := json.Unmarshal(text, &present); err != nil {
		return nil, err
	}
	for _, key := range required {
		if _, ok := present[key]; ok {
			continue
		}
		if text, err = insert(text, key, ""); err != nil {
			return nil, err
		}
	}
	return text, nil
}
