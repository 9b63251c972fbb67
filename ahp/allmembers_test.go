package ahp

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestOnlyObjectsHaveMembers fails unless AllMembers returns the members of valid objects, and
// refuses all other values.
func TestOnlyObjectsHaveMembers(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{`{}`, ""},
		{" {\n} ", ""},
		{`{"a":1}`, "a=1;"},
		{` { "a" : {"b":[1, 2]} , "\u0063" : "x" } `, `a={"b":[1, 2]};c="x";`},
		{`{"a":1,"A":2}`, "a=1;A=2;"},
		{`{"a":1,"\u0061":2}`, "refused"},
		{`{"a":1,}`, "refused"},
		{`{,}`, "refused"},
		{`{"a"}`, "refused"},
		{`{"a":}`, "refused"},
		{`{"a":1 "b":2}`, "refused"},
		{`{"\ud800":1}`, "refused"},
		{`{"a":01}`, "refused"},
		{`{} x`, "refused"},
		{`[]`, "refused"},
		{`{`, "refused"},
		{`{"a":1`, "refused"},
		{``, "refused"},
	} {
		got := ""
		list, err := AllMembers([]byte(test.in))
		for _, m := range list {
			got += m.Name + "=" + string(m.Raw) + ";"
			if !bytes.HasPrefix([]byte(test.in)[m.Offset():], m.Raw) {
				t.Errorf("AllMembers(%q): the value %s is not at its offset %d", test.in, m.Raw, m.Offset())
			}
		}
		if err != nil {
			got = "refused"
		}
		if got != test.want {
			t.Errorf("AllMembers(%q) = %s; want %s", test.in, got, test.want)
		}
	}
}

// FuzzAllMembers fails if AllMembers accepts an object that encoding/json reads differently.
func FuzzAllMembers(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[]},"\u0064":"x"}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := AllMembers(data)
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("AllMembers accepts %q, but encoding/json returns %v", data, err)
		}
		if len(want) != len(list) {
			t.Fatalf("AllMembers(%q) has %d members; want %d", data, len(list), len(want))
		}
		for _, m := range list {
			if !bytes.Equal(want[m.Name], m.Raw) {
				t.Fatalf("AllMembers(%q): %q is %q; want %q", data, m.Name, m.Raw, want[m.Name])
			}
		}
	})
}
