package auth

import (
	"bytes"
	"strings"
	"unicode/utf16"
)

// TokenIn returns the token in the text of a file. Windows PowerShell redirects output as UTF-16, and editors on Windows put a byte
// order mark before UTF-8.
func TokenIn(text []byte) string {
	if wide, ok := bytes.CutPrefix(text, []byte("\xff\xfe")); ok {
		units := make([]uint16, len(wide)/2)
		for i := range units {
			units[i] = uint16(wide[2*i]) | uint16(wide[2*i+1])<<8
		}
		text = []byte(string(utf16.Decode(units)))
	}
	return strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff"))
}
