package cli

import (
	"regexp"
	"strings"
)

// unquoted matches words that a shell takes as they are.
var unquoted = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Quoted returns a word in the form in which a POSIX shell reads it as it is.
func Quoted(word string) string {
	if unquoted.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
