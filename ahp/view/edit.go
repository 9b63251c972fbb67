package view

import (
	"cmp"
	"slices"
)

// An Editor puts a changed message together: it replaces parts of it, and
// leaves all other bytes alone. The zero Editor changes nothing.
type Editor struct{ edits []edit }

type edit struct {
	at, end int
	with    []byte
}

// A Place is where something stands in a message.
type Place struct{ At, End int }

// Replace puts something else in a place. Places that are replaced may lie in
// one another: what stands in another one that is replaced goes with that. Of
// two for one place, the second counts.
func (e *Editor) Replace(p Place, with []byte) { e.edits = append(e.edits, edit{p.At, p.End, with}) }

// Keep leaves only some elements of an array, given where all of them stand.
func (e *Editor) Keep(all []Place, wanted func(i int) bool) {
	kept, dropped := -1, -1 // the last that is kept, the first that is dropped since
	for i := range all {
		switch {
		case !wanted(i):
			if dropped < 0 {
				dropped = i
			}
			continue
		case dropped >= 0:
			e.Replace(Place{all[dropped].At, all[i].At}, nil)
		}
		kept, dropped = i, -1
	}
	switch last := len(all) - 1; {
	case dropped < 0:
	case kept >= 0:
		e.Replace(Place{all[kept].End, all[last].End}, nil)
	default:
		e.Replace(Place{all[0].At, all[last].End}, nil)
	}
}

// Changes reports whether anything is to be replaced.
func (e *Editor) Changes() bool { return len(e.edits) > 0 }

// Apply returns the message with its replacements; the message itself if there
// are none. The Editor is as new then.
func (e *Editor) Apply(message []byte) []byte {
	if len(e.edits) == 0 {
		return message
	}
	// The outer one of two that begin at one place comes first.
	slices.SortStableFunc(e.edits, func(a, b edit) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.end, a.end)) })
	out := make([]byte, 0, len(message))
	done := 0
	for i, one := range e.edits {
		again := i+1 < len(e.edits) && e.edits[i+1].at == one.at && e.edits[i+1].end == one.end
		if one.at < done || again {
			continue
		}
		out = append(append(out, message[done:one.at]...), one.with...)
		done = one.end
	}
	e.edits = e.edits[:0]
	return append(out, message[done:]...)
}
