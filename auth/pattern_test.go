package auth_test

import (
	"regexp"
	"strings"
	"testing"

	"ahprelay/auth"

	"pgregory.net/rapid"
)

func TestPatternsMatchWholeTexts(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"laptop", "laptop", true},
		{"laptop", "Laptop", false},
		{"laptop", "laptops", false},
		{"", "", true},
		{"*", "", true},
		{"*", "mock:/1", true},
		{"mock:/*", "mock:/1/2", true},
		{"mock:/*", "mock:", false},
		{"mock:/*/turn", "mock:/1/turn", true},
		{"mock:/*/turn", "mock:/turn", false},
		// The texts before and after the star must not overlap.
		{"ab*ba", "aba", false},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "a-c-b", false},
		// Only the star is special.
		{"a.c", "abc", false},
		{"a?c", "abc", false},
		{"[ab]", "a", false},
	} {
		if got := auth.Matches(test.pattern, test.text); got != test.want {
			t.Errorf("Matches(%q, %q) = %v; want %v", test.pattern, test.text, got, test.want)
		}
	}
}

// TestMatchesIsGlob compares Matches with an equivalent regular expression.
func TestMatchesIsGlob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{0,6}`).Draw(t, "pattern")
		text := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "text")
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		want := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(text)
		if got := auth.Matches(pattern, text); got != want {
			t.Errorf("Matches(%q, %q) = %v; want %v", pattern, text, got, want)
		}
	})
}
