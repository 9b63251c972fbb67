package gate

import (
	"crypto/sha256"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Bounds for named content. The oldest entries make room.
const (
	maxTexts   = 16 << 10 // contents of files
	maxOffers  = 256      // tool calls that wait for an answer
	maxOptions = 32       // of a call
)

// mentions records the URIs the host has named on one connection, on channels in reach: file
// contents, and the options in tool calls that wait for an approval. A limited client
// may name only these. After a replay the host names nothing again, so it is asked for
// the state.
type mentions struct {
	reach   *reach                                          // nil: all channels
	texts   *simplelru.LRU[[sha256.Size]byte, struct{}]     // hashes of URIs
	options *simplelru.LRU[[sha256.Size]byte, []optionHash] // by the hash of the call's id
}

type optionHash [sha256.Size]byte

func newMentions(r *reach) *mentions {
	texts, _ := simplelru.NewLRU[[sha256.Size]byte, struct{}](maxTexts, nil) // an error occurs only for a limit of 0
	options, _ := simplelru.NewLRU[[sha256.Size]byte, []optionHash](maxOffers, nil)
	return &mentions{r, texts, options}
}

// learn records a host message's facts, and requests the state for channels the client
// resumes by a replay.
func (t *mentions) learn(reading *view.Reading) {
	if reading == nil {
		return
	}
	for i := range reading.Facts {
		f := &reading.Facts[i]
		text := f.Kind == view.Has && f.Thing == view.FileText && isNamed(f.URI)
		if !text && f.Kind != view.Offers || t.reach != nil && !t.reach.allows(f.Of) {
			continue
		}
		if text {
			t.texts.Add(sha256.Sum256([]byte(f.URI)), struct{}{})
			continue
		}
		var options []optionHash
		for _, option := range f.List[:min(len(f.List), maxOptions)] {
			options = append(options, sha256.Sum256([]byte(option)))
		}
		t.options.Add(sha256.Sum256([]byte(f.URI)), options)
	}
	for _, channel := range reading.Unstated() {
		reading.Ask(channel)
	}
}

// isNamed reports whether a URI is readable only after the host has named it.
func isNamed(uri string) bool {
	rule := contentRules[bareScheme(uri)]
	return rule == byName || rule == byRevision
}

// text reports whether the host has named a file's content.
func (t *mentions) text(uri string) bool { return t.texts.Contains(sha256.Sum256([]byte(uri))) }

// offers reports whether the host has offered an option for a tool call.
func (t *mentions) offers(call, option []byte) bool {
	id, okCall := ahp.Text(call)
	choice, okOption := ahp.Text(option)
	if !okCall || !okOption {
		return false
	}
	options, _ := t.options.Peek(sha256.Sum256([]byte(id)))
	return slices.Contains(options, optionHash(sha256.Sum256([]byte(choice))))
}
