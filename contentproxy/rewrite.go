package contentproxy

import (
	"cmp"
	"slices"
)

// A rewriter replaces parts of a message, and leaves all other bytes alone.
type rewriter struct{ edits []edit }

type edit struct {
	at, length int
	with       []byte
}

func (r *rewriter) replace(at, length int, with []byte) {
	r.edits = append(r.edits, edit{at, length, with})
}

// apply returns the message with its replacements; the message itself if there
// are none.
func (r *rewriter) apply(message []byte) []byte {
	if len(r.edits) == 0 {
		return message
	}
	slices.SortFunc(r.edits, func(a, b edit) int { return cmp.Compare(a.at, b.at) })
	var out []byte
	done := 0
	for _, e := range r.edits {
		out = append(append(out, message[done:e.at]...), e.with...)
		done = e.at + e.length
	}
	return append(out, message[done:]...)
}
