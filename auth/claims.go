package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// errTwoReadings reports a token that two parsers could read differently.
var errTwoReadings = errors.New("a header or claim is given twice, or again in other case")

// CheckKeys refuses a JWT in whose header or claims a name stands twice, or in
// another case again: who signed it may have checked one, and we read the
// other (RFC 8725, section 2.4). What is no JWT is left to its parser.
func CheckKeys(token string) error {
	for i, part := range strings.SplitN(token, ".", 3) {
		if i == 2 {
			break // the signature
		}
		object, err := base64.RawURLEncoding.DecodeString(part)
		if err == nil && !uniqueKeys(object) {
			return errTwoReadings
		}
	}
	return nil
}

// uniqueKeys reports whether no two keys of an object are the same but for
// case.
func uniqueKeys(object []byte) bool {
	d := json.NewDecoder(strings.NewReader(string(object)))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return true
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return true
		}
		if key = strings.ToLower(key); seen[key] {
			return false
		}
		seen[key] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return true
		}
	}
	return true
}
