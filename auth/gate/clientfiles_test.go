package gate

import (
	"encoding/base64"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// fileParts are pieces for random texts, some of which name a client's file.
var fileParts = []string{
	"/", "//", "\\", ":", "%", "%2", "%20", "%2f", "%5c", "%3a", "%25", "%40", "%23", "%3F", "%09", "\t", "\n", "@", "?", "#", " ", "\"", "<", "%22",
	"bob-1", "//Bob%2D1", "BOB%2D1", "//bob-1", "//x@bob-1:", "%2F/b\tob-1", "ada-1", "b", "ob-1", "nobody", "vscode-agent-client", "agent-client:",
	"agent%2Dclient:", "x", "80", "é", "%C3%A9", "http:", "-", "=", "{",
}

// TestNoRoundIsMissed compares the search with allRounds, which decodes a text again and again and
// searches after each round. The search skips rounds that cannot change the result, so both must
// agree.
func TestNoRoundIsMissed(t *testing.T) {
	ada, _ := twoSubjects(t)
	rapid.Check(t, func(t *rapid.T) {
		for range 50 {
			inner := strings.Join(rapid.SliceOfN(rapid.SampledFrom(fileParts), 1, 5).Draw(t, "inner"), "")
			parts := append(slices.Clip(fileParts), "/"+base64.StdEncoding.EncodeToString([]byte(inner)))
			text := []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 8).Draw(t, "parts"), ""))
			l := newSearch(ada.subjects, "ada", 0)
			l.left = math.MaxInt
			if got, want := l.text(text, 0), l.allRounds(text); got != want {
				t.Errorf("%q is recognized as a file of another client: %v; want %v", text, got, want)
			}
		}
	})
}

// allRounds decodes a text repeatedly, and searches it before each round.
func (l *search) allRounds(text []byte) bool {
	for range maxEscapes {
		if l.parts(text, 0, 0) {
			return true
		}
		plain, escaped := l.unescape(text)
		if !escaped {
			return false
		}
		text = plain
	}
	return true
}

// TestMayBeginMissesNothing fails if mayBegin, which looks at four base64 characters, rejects a
// text that begins accepts after looking at all.
func TestMayBeginMissesNothing(t *testing.T) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=\t\\."
	for _, beginning := range []string{"%", " {", "[", "\t\"", "\r\n/", "\uFEFF{", "ab:", "a%", "A\tb:", "scheme", "x", "\\"} {
		text := base64.StdEncoding.EncodeToString([]byte(beginning + "://x/y"))
		if !begins([]byte(text), minPacked) || !mayBegin([4]byte([]byte(text))) {
			t.Errorf("base64 of a text with the beginning %q: begins = %v, mayBegin = %v; want true and true", beginning, begins([]byte(text), minPacked), mayBegin([4]byte([]byte(text))))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 100 {
			text := rapid.SliceOfN(rapid.SampledFrom([]byte(alphabet)), minPacked, minPacked).Draw(t, "text")
			if begins(text, minPacked) && !mayBegin([4]byte(text)) {
				t.Errorf("mayBegin(%q) = false, but begins = true; want true", text)
			}
		}
	})
}

// TestNoAuthorityIsMissed compares the search with a search that skips no authority. The first
// skips authorities whose first letter begins no clientId, so both must agree.
func TestNoAuthorityIsMissed(t *testing.T) {
	ada, _ := twoSubjects(t)
	all, _ := twoSubjects(t)
	for i := range all.subjects.firsts {
		all.subjects.firsts[i].Store(true)
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 50 {
			text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(fileParts), 1, 10).Draw(t, "parts"), "")
			var got [2]bool
			for i, subjects := range []*Subjects{ada.subjects, all.subjects} {
				l := newSearch(subjects, "ada", 0)
				l.left = math.MaxInt
				got[i] = l.text([]byte(text), 0)
			}
			if got[0] != got[1] {
				t.Errorf("%q is recognized as a file of another client: %v; want %v", text, got[0], got[1])
			}
		}
	})
}
