package ahp_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ahprelay/ahp"
)

func TestStringsVisitsEachString(t *testing.T) {
	const text = ` {"a":"x","b":{"c":["y",1,"z\u0062"], "\u0064":"\ud800"},"e":true , "f" : "g","\u0068":["\u0069","\u006a",{"\u006b":"\u006c"}]}`
	var got []string
	ahp.Strings([]byte(text), func(s ahp.StringAt) bool {
		form := "%d %s=%s"
		if s.IsKey {
			form = "%d %s%s:"
		}
		if s.Text == nil {
			s.Text = []byte("none")
		}
		got = append(got, fmt.Sprintf(form, s.Depth, s.Key, s.Text))
		return true
	})
	want := []string{
		"1 a:", "1 a=x", "1 b:", "2 c:", "3 c=y", "3 c=zb", "2 d:", "2 d=none", "1 e:", "1 f:", "1 f=g",
		"1 h:", "2 h=i", "2 h=j", "3 k:", "3 k=l",
	}
	if !slices.Equal(got, want) {
		t.Errorf("Strings = %q; want %q", got, want)
	}
}

func TestStringsEndsOnDemand(t *testing.T) {
	n := 0
	ahp.Strings([]byte(`["a","b","c"]`), func(ahp.StringAt) bool {
		n++
		return n < 2
	})
	if n != 2 {
		t.Errorf("visited %d strings; want 2", n)
	}
}

// FuzzStrings fails if Strings does not visit each string that encoding/json reads.
func FuzzStrings(f *testing.F) {
	f.Add([]byte(`{"a":"x","b":{"c":["y",1,"z\u0062"]}}`))
	f.Add([]byte(`"x"`))
	f.Add([]byte(`{"":["\"",{},[],"\\"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		frame := fmt.Appendf(nil, `{"method":"m","params":%s}`, raw)
		env, err := ahp.Peek(frame)
		if err != nil || env.Params == nil {
			ahp.Strings(raw, func(ahp.StringAt) bool { return true }) // fails only if it does not end
			return
		}
		got := map[string]int{}
		lone := false
		ahp.Strings(env.Params, func(s ahp.StringAt) bool {
			lone = lone || s.Text == nil
			if !s.IsKey {
				got[string(s.Text)]++
			}
			return true
		})
		var value any
		if json.Unmarshal(env.Params, &value) != nil || lone {
			return
		}
		want := map[string]int{}
		count(value, want)
		for text, n := range want {
			if got[text] < n { // encoding/json drops the first value of a duplicate key
				t.Errorf("Strings found %q %d times; want at least %d", text, got[text], n)
			}
		}
	})
}

func count(value any, into map[string]int) {
	switch v := value.(type) {
	case string:
		into[v]++
	case []any:
		for _, one := range v {
			count(one, into)
		}
	case map[string]any:
		for _, one := range v {
			count(one, into)
		}
	}
}

// TestBareStringsHaveNoMarks builds strings with a slash, backslash, colon or percent sign at each
// place. Bare must be false for each, and true for strings without these characters.
func TestBareStringsHaveNoMarks(t *testing.T) {
	for _, mark := range []string{"", "/", `\\`, `\/`, `\u002f`, ":", "%"} {
		for before := range 20 {
			for behind := range 20 {
				text := strings.Repeat("x", before) + mark + strings.Repeat("y", behind)
				ahp.Strings([]byte(`["`+text+`","zzzzzzzz"]`), func(s ahp.StringAt) bool {
					if want := mark == ""; s.Bare != want {
						t.Errorf("%q: bare %v; want %v", text, s.Bare, want)
					}
					return false
				})
			}
		}
	}
}
