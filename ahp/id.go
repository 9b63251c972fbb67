package ahp

import (
	"bytes"
	"math"
)

// SameID reports whether two raw ids from [Peek] are equal for a JavaScript host. Such
// a host parses a request's id and may write it differently into the response: 1.0 and
// 1e0 come back as 1, "\u0061" as "a", 9007199254740993 as 9007199254740992, and
// numbers beyond the range of doubles as null, so they equal null. A number never
// equals a string, and nil, the absent id, equals nothing.
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

// numberOrNull returns a raw number's value, and infinity for null and for all numbers
// that JavaScript writes as null.
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
