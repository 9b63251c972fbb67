package ahp

import (
	"bytes"
	"math"
)

// SameID reports whether two raw ids, as [Peek] returns them, are the same id
// to a JSON parser in JavaScript. A host that parses a request and writes its
// id into the response may write it otherwise: 1.0 and 1e0 come back as 1,
// "\u0061" as "a", 9007199254740993 as 9007199254740992, and as null what is beyond
// the range of doubles, so that this is the same as null. A number and a string
// are never the same, and nil, which is no id, is the same as nothing.
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
	numberA, okA := numberOrNull(a)
	numberB, okB := numberOrNull(b)
	return okA && okB && numberA == numberB
}

// numberOrNull returns the value of a raw number, infinity for whatever JavaScript
// writes as null.
func numberOrNull(raw []byte) (float64, bool) {
	if string(raw) == "null" {
		return math.Inf(1), true
	}
	f, ok := number(raw)
	if math.IsInf(f, 0) {
		f = math.Inf(1)
	}
	return f, ok
}
