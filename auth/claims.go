package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode"
)

// errTwoReadings reports a token that two parsers could read differently.
var errTwoReadings = errors.New("duplicate name in header or claims (case ignored)")

// CheckKeys refuses a JWT with a duplicate name in its header or claims, also if only
// the case differs. The signer may have checked one value while we read the other (RFC
// 8725, section 2.4). Text that is not a JWT is left to its parser.
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

// foldRune returns the smallest of the characters that encoding/json reads alike in a
// name, such as s, S and U+017F.
func foldRune(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}

// uniqueKeys reports whether all keys of an object differ, ignoring case.
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
		if key = strings.Map(foldRune, key); seen[key] {
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
