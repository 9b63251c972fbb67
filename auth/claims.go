package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode"
)

// errTwoReadings reports a token that different parsers could read differently.
var errTwoReadings = errors.New("duplicate name in header or claims (case ignored)")

// CheckKeys returns an error for a JWT in which a name occurs twice in the header or
// claims, ignoring case. With such a token, the signer and this program could read
// different values (RFC 8725, section 2.4). If the text is not a JWT, CheckKeys returns
// nil.
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

// foldRune maps the characters that encoding/json treats as equal in names, such as s, S
// and U+017F, to one of them.
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
