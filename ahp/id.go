package ahp

import "bytes"

// SameID reports whether two raw ids, as [Peek] returns them, are the same id
// to a JSON parser in JavaScript. A host that parses a request and writes its
// id into the response may write it otherwise: 1.0 and 1e0 come back as 1,
// "\u0061" as "a", 9007199254740993 as 9007199254740992. A number and a string
// are never the same, null is the same as null, and nil, which is no id, is
// the same as nothing.
func SameID(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	if bytes.Equal(a, b) {
		return true
	}
	if a[0] == '"' || b[0] == '"' {
		textA, okA := decode(a)
		textB, okB := decode(b)
		return okA && okB && bytes.Equal(textA, textB)
	}
	numberA, okA := number(a)
	numberB, okB := number(b)
	return okA && okB && numberA == numberB
}
