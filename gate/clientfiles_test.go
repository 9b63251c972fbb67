package gate

import (
	"encoding/base64"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// fileParts are what texts are put together from that may name a file of a
// client.
var fileParts = []string{
	"/", "//", "\\", ":", "%", "%2", "%20", "%2f", "%5c", "%3a", "%25", "%40", "%23", "%3F", "%09", "\t", "\n", "@", "?", "#", " ", "\"", "<", "%22",
	"bob-1", "//Bob%2D1", "BOB%2D1", "//bob-1", "//x@bob-1:", "%2F/b\tob-1", "ada-1", "b", "ob-1", "nobody", "vscode-agent-client", "agent-client:",
	"agent%2Dclient:", "x", "80", "é", "%C3%A9", "http:", "-", "=", "{",
}

// TestNoRoundIsMissed compares text, which leaves out rounds that can find
// nothing new, with all rounds.
func TestNoRoundIsMissed(t *testing.T) {
	ada, _ := twoSubjects(t)
	rapid.Check(t, func(t *rapid.T) {
		for range 50 {
			inner := strings.Join(rapid.SliceOfN(rapid.SampledFrom(fileParts), 1, 5).Draw(t, "inner"), "")
			parts := append(slices.Clip(fileParts), "/"+base64.StdEncoding.EncodeToString([]byte(inner)))
			text := []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 8).Draw(t, "parts"), ""))
			l := newLook(ada.subjects, "ada", 0)
			l.left = math.MaxInt
			if got, want := l.text(text, 0), l.allRounds(text); got != want {
				t.Errorf("%q names a file of another: %v; want %v", text, got, want)
			}
		}
	})
}

// allRounds looks at a text after each round of decoding.
func (l *look) allRounds(text []byte) bool {
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
