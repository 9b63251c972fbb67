package ahp_test

import (
	"fmt"
	"slices"
	"testing"

	"ahprelay/ahp"
)

func TestValuesVisitsEachMember(t *testing.T) {
	const text = ` { "a" : "x","b":{"c":[1,{}]} ,"\u0064":[ ], "\ud800":null,"a":-1.5e3 } `
	var got []string
	ahp.Values([]byte(text), func(key, value []byte) bool {
		got = append(got, fmt.Sprintf("%s=%s", key, value))
		return true
	})
	want := []string{`a="x"`, `b={"c":[1,{}]}`, `d=[ ]`, `=null`, `a=-1.5e3`}
	if !slices.Equal(got, want) {
		t.Errorf("Values = %q; want %q", got, want)
	}
}

func TestValuesEndsOnDemand(t *testing.T) {
	for in, want := range map[string]int{
		`{"a":1,"b":2,"c":3}`: 2, `{"a":1}`: 1, `{}`: 0, ` { } `: 0, `[1,"a",2]`: 0, `"a"`: 0, `null`: 0, ``: 0,
	} {
		n := 0
		ahp.Values([]byte(in), func(_, _ []byte) bool {
			n++
			return n < 2
		})
		if n != want {
			t.Errorf("Values(%s) visited %d members; want %d", in, n, want)
		}
	}
}

// FuzzValues fails if Values visits other members than AllMembers returns. AllMembers refuses some
// inputs that Values visits.
func FuzzValues(f *testing.F) {
	for _, seed := range []string{`{"a":"x","b":{"c":["y",1,"z\u0062"]}}`, `{"\ud800":{},"":[]}`, `{"a"`, `{"a":`, `{"a":1,`, `{"a" 1}`, `{,}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got []string
		ahp.Values(raw, func(key, value []byte) bool {
			_ = append(value, '!')
			got = append(got, string(key)+"="+string(value))
			return true
		})
		list, err := ahp.AllMembers(raw)
		if err != nil {
			return // fails only if Values does not end
		}
		var want []string
		for _, m := range list {
			want = append(want, m.Name+"="+string(m.Raw))
		}
		if !slices.Equal(got, want) {
			t.Errorf("Values(%q) = %q; want %q", raw, got, want)
		}
	})
}
