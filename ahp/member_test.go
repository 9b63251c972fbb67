package ahp_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/ahp"
)

func TestMembersFindsNamedMembers(t *testing.T) {
	tests := []struct {
		in   string
		a, b string // raw values; "" if absent
	}{
		{`{}`, ``, ``},
		{`{"a":1}`, `1`, ``},
		{` { "b" : [ 1 ] , "a" : null } `, `null`, `[ 1 ]`},
		{`{"\u0061":"\u0061"}`, `"\u0061"`, ``},
		// A key in another case does not match, nor does a nested member. Other keys may be
		// duplicate.
		{`{"A":1,"x":{"a":1},"x":2,"b":3}`, ``, `3`},
	}
	for _, test := range tests {
		want := []ahp.Member{{Name: "a"}, {Name: "b"}}
		if err := ahp.Members([]byte(test.in), want); err != nil {
			t.Errorf("Members(%s): %v; want no error", test.in, err)
		} else if got := [2]string{string(want[0].Raw), string(want[1].Raw)}; got != [2]string{test.a, test.b} {
			t.Errorf("Members(%s) = %q; want %q", test.in, got, [2]string{test.a, test.b})
		}
	}
}

func TestBrokenObjectsHaveNoMembers(t *testing.T) {
	tests := []struct{ in, reason string }{
		{``, notObject},
		{`null`, notObject},
		{`[{"a":1}]`, notObject},
		{`{"a":1}}`, after},
		{`{"a":1,"\u0061":1}`, `"a" given twice`},
		{`{"\udfff":1}`, loneKey},
		{`{"a"`, badEnd},
		{`{"a":01}`, badByte},
	}
	for _, test := range tests {
		err := ahp.Members([]byte(test.in), []ahp.Member{{Name: "a"}})
		var refused *ahp.FrameError
		if !errors.As(err, &refused) || refused.Reason != test.reason {
			t.Errorf("Members(%s) = %v; want %s", test.in, err, test.reason)
		}
	}
}

// FuzzMembers fails if Members returns other members than encoding/json.
func FuzzMembers(f *testing.F) {
	for _, frame := range corpus(f) {
		f.Add(frame)
	}
	f.Add([]byte(`{"a":1,"\u0061":{"b":[2]},"id":"\ud83d\ude00"}`))
	f.Fuzz(func(t *testing.T, object []byte) {
		before := bytes.Clone(object)
		names := []string{"id", "params", "a"}
		want := []ahp.Member{{Name: names[0]}, {Name: names[1]}, {Name: names[2]}}
		err := ahp.Members(object, want)
		if !bytes.Equal(object, before) {
			t.Fatalf("Members has changed %q to %q; want it as it was", before, object)
		}
		if err != nil {
			return // FuzzPeek tests refusals
		}
		if !json.Valid(object) {
			t.Fatalf("Members(%q) = nil; want a refusal", object)
		}
		reference, ok := membersOf(object, names...)
		if !ok {
			t.Fatalf("Members(%q) = nil; want a refusal", object)
		}
		for _, m := range want {
			if !bytes.Equal(m.Raw, reference[m.Name]) {
				t.Fatalf("Members(%q): %s is %q; want %q", object, m.Name, m.Raw, reference[m.Name])
			}
		}
	})
}

func TestTextDecodesStrings(t *testing.T) {
	tests := []struct {
		in, want string
		ok       bool
	}{
		{`""`, "", true},
		{`"a"`, "a", true},
		{`"é😀"`, "é😀", true},
		{`"\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00\u0000"`, "\"\\/\b\f\n\r\té😀\x00", true},
		// The replacement character and noncharacters are ordinary text.
		{`"\ufffd\uffff"`, "\ufffd\uffff", true},
		{``, "", false},
		{`"`, "", false},
		{`"a`, "", false},
		{`a"`, "", false},
		{`"a" `, "", false},
		{` "a"`, "", false},
		{`"a"b"`, "", false},
		{`"\"`, "", false},
		{`"\u00"`, "", false},
		{`"\ud800"`, "", false},
		{`"\ud800\u0041"`, "", false},
		// The second half of a surrogate pair needs its own \u escape.
		{`"\ud800\ndc00"`, "", false},
		{`"\udc00\ud800"`, "", false},
		{"\"\xff\"", "", false},
		{"\"\n\"", "", false},
		{`1`, "", false},
		{`null`, "", false},
	}
	for _, test := range tests {
		got, ok := ahp.Text([]byte(test.in))
		if got != test.want || ok != test.ok {
			t.Errorf("Text(%s) = %q, %v; want %q, %v", test.in, got, ok, test.want, test.ok)
		}
	}
}

// FuzzText fails if Text decodes a string differently from encoding/json.
func FuzzText(f *testing.F) {
	f.Add([]byte(`"\ud83d\ude00\n\\é"`))
	f.Add([]byte(`"\ud83d"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		got, ok := ahp.Text(raw)
		if !bytes.Equal(raw, before) {
			t.Fatalf("Text changed its input %q to %q; want it as it was", before, raw)
		}
		var want string
		if ok && json.Unmarshal(raw, &want) != nil {
			t.Fatalf("Text(%q) = %q; want no text", raw, got)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("Text(%q) (-want +got):\n%s", raw, diff)
		}
	})
}

// TestSpeltRefusesKeysInADifferentCase lists objects. Spelt must refuse a key that encoding/json
// would read as a wanted name, although its case differs.
func TestSpeltRefusesKeysInADifferentCase(t *testing.T) {
	for object, ok := range map[string]bool{
		`{"uri":1}`:                   true,
		`{"uri":1,"x":{"URI":2}}`:     true, // in a nested object
		`{"uri":1,"urix":2,"ur":3}`:   true,
		`{"":1,"\u00dcri":2}`:         true,
		`{}`:                          true,
		`{"uri":1,"URI":2}`:           false,
		`{"URI":2}`:                   false,
		`{"uri":1,"\u0055ri":2}`:      false,
		`{"uri":1,"tasK":2}`:          false,
		`{"uri":1,"ta\u017fk":2}`:     false, // U+017F equals s without case
		`{"uri":1,"tas\u212a":2}`:     false, // U+212A equals k without case
		"{\"uri\":1,\"tas\u212a\":2}": false,
		`{"uri":1,"uri":2}`:           false,
		`["uri"]`:                     false,
	} {
		want := []ahp.Member{{Name: "uri"}, {Name: "task"}}
		if err := ahp.Spelt([]byte(object), want); err == nil != ok {
			t.Errorf("Spelt(%s) = %v; want none: %v", object, err, ok)
		}
	}
}

// TestSpeltAsJSON draws keys. Spelt must refuse exactly those that encoding/json reads into a
// struct's field in spite of their case.
func TestSpeltAsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`(?i)[tſx][aé]?[sſ\x{212a}k]{0,2}[kK\x{212a}]?`).Draw(t, "key")
		object, err := json.Marshal(map[string]int{key: 1})
		if err != nil {
			t.Fatal(err)
		}
		var read struct {
			Task int `json:"task"`
		}
		if err := json.Unmarshal(object, &read); err != nil {
			t.Fatal(err)
		}
		want := []ahp.Member{{Name: "task"}}
		if err := ahp.Spelt(object, want); (err != nil) != (read.Task == 1 && key != "task") {
			t.Errorf("Spelt(%s) = %v, and encoding/json reads %d; want an error only if it reads 1 from another spelling", object, err, read.Task)
		}
	})
}
