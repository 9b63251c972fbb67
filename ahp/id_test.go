package ahp_test

import (
	"encoding/json"
	"testing"

	"ahprelay/ahp"
)

// sameIDs lists pairs for which SameID must return true, and otherIDs pairs for which it must
// return false.
var sameIDs = [][2]string{
	{`1`, `1`},
	{`1`, `1.0`},
	{`1`, `10e-1`},
	{`1`, `1E+0`},
	{`0`, `-0`},
	{`0`, `0e5`},
	// JavaScript reads a number below the smallest double as zero, and above the largest as
	// infinity.
	{`0`, `1e-999`},
	{`1e999`, `2e999`},
	// Both numbers are the same double.
	{`9007199254740993`, `9007199254740992`},
	{`0.1`, `0.1000000000000000055511151231257827021181583404541015625`},
	{`"a"`, `"a"`},
	{`"a"`, `"\u0061"`},
	{`"/😀"`, `"\/\ud83d\uDE00"`},
	{`""`, `""`},
	{`null`, `null`},
	// JSON has no infinity, so JavaScript writes it as null.
	{`null`, `1e999`},
	{`null`, `-1e999`},
	{`1e999`, `-1e999`},
}

var otherIDs = [][2]string{
	{`1`, `2`},
	{`1`, `"1"`},
	{`1`, `-1`},
	{`9007199254740992`, `9007199254740994`},
	{`"a"`, `"A"`},
	{`"a"`, `"a "`},
	// The letter é as one code point and as two: SameID does not normalize texts.
	{`"\u00e9"`, `"e\u0301"`},
	{`null`, `0`},
	{`null`, `"null"`},
	{`null`, `""`},
}

func TestSameID(t *testing.T) {
	check := func(a, b string, want bool) {
		t.Helper()
		if got := ahp.SameID([]byte(a), []byte(b)); got != want {
			t.Errorf("SameID(%s, %s) = %v; want %v", a, b, got, want)
		}
		if got := ahp.SameID([]byte(b), []byte(a)); got != want {
			t.Errorf("SameID(%s, %s) = %v; want %v", b, a, got, want)
		}
	}
	for _, pair := range sameIDs {
		check(pair[0], pair[1], true)
	}
	for _, pair := range otherIDs {
		check(pair[0], pair[1], false)
	}
	// An absent id equals no id.
	check(``, ``, false)
	check(``, `null`, false)
	// These texts are no JSON, though strconv can read them.
	check(`0x10`, `16`, false)
	check(`1_0`, `10`, false)
	check(`Inf`, `1e999`, false)
	check(`01`, `1`, false)
	check(`"a`, `"\u0061`, false)
}

// FuzzSameID fails if SameID disagrees with comparing the values that encoding/json reads.
func FuzzSameID(f *testing.F) {
	for _, pair := range append(sameIDs, otherIDs...) {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		got := ahp.SameID(a, b)
		if swapped := ahp.SameID(b, a); swapped != got {
			t.Fatalf("SameID(%q, %q) = %v, but %v with the arguments exchanged; want the same", a, b, got, swapped)
		}
		if !isID(a) || !isID(b) || surrogateEscape.Match(a) || surrogateEscape.Match(b) {
			return
		}
		var valueA, valueB any
		if json.Unmarshal(a, &valueA) != nil || json.Unmarshal(b, &valueB) != nil {
			return // out of a double's range
		}
		if want := valueA == valueB; got != want {
			t.Fatalf("SameID(%q, %q) = %v; want %v", a, b, got, want)
		}
	})
}

// isID reports whether Peek accepts raw as an id.
func isID(raw []byte) bool {
	e, err := ahp.Peek(ahp.AppendResult(nil, raw, nil))
	return err == nil && string(e.ID) == string(raw)
}
