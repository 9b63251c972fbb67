package client

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestTranscriptKeepsItsBoundAndEnd shortens a chat to various lengths. The text never exceeds its
// bound, and ends like the chat.
func TestTranscriptKeepsItsBoundAndEnd(t *testing.T) {
	chat := Chat{Turns: []Turn{{Message: Message{Text: "first"}}, {Message: Message{Text: strings.Repeat("é", 200) + " last"}}}}
	for _, turns := range []int{1, 2} {
		for most := 60; most < 500; most++ {
			text := chat.Transcript(turns, most)
			if len(text) > most || !strings.HasSuffix(text, " last\n") || !utf8.ValidString(text) {
				t.Fatalf("Transcript(%d, %d) has %d bytes: %q", turns, most, len(text), text)
			}
		}
	}
}
