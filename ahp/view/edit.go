package view

import (
	"cmp"
	"slices"

	"ahprelay/ahp"
)

// An Editor edits a message: it replaces parts, and keeps all other bytes. The zero
// Editor changes nothing.
type Editor struct{ edits []edit }

type edit struct {
	at, end int
	with    []byte
}

// A Place is a byte range in a message.
type Place = ahp.Place

// Replace replaces the bytes at a place. Places may be nested: the outer replacement
// wins. If a place is replaced twice, the second replacement wins.
func (e *Editor) Replace(p Place, with []byte) { e.edits = append(e.edits, edit{p.At, p.End, with}) }

// Keep removes the unwanted elements of an array, or members of an object. all has the
// places of all of them.
func (e *Editor) Keep(all []Place, wanted func(i int) bool) {
	kept, dropped := -1, -1 // the last kept element, and the first dropped element since then
	for i := range all {
		switch {
		case !wanted(i):
			if dropped < 0 {
				dropped = i
			}
			continue
		case dropped >= 0:
			e.Replace(Place{At: all[dropped].At, End: all[i].At}, nil)
		}
		kept, dropped = i, -1
	}
	switch last := len(all) - 1; {
	case dropped < 0:
	case kept >= 0:
		e.Replace(Place{At: all[kept].End, End: all[last].End}, nil)
	default:
		e.Replace(Place{At: all[0].At, End: all[last].End}, nil)
	}
}

// Changes reports whether there are replacements.
func (e *Editor) Changes() bool { return len(e.edits) > 0 }

// Apply returns the message with its replacements, or the message itself if there are
// none. It resets the Editor.
func (e *Editor) Apply(message []byte) []byte {
	if len(e.edits) == 0 {
		return message
	}
	// If two places start together, the outer comes first.
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
