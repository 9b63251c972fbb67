package gate

import (
	"crypto/sha256"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Limits for remembered content. When a limit is reached, the oldest entries are dropped.
const (
	maxTexts   = 16 << 10 // URIs of file contents
	maxOffers  = 256      // tool calls that wait for approval
	maxOptions = 32       // options per call; further ones are ignored
)

// mentions remembers what the host has named on this connection, on channels in reach: URIs
// of file contents, and the options in tool calls that wait for approval. A client with
// limited authority may name only these. After a replay the host does not name them again,
// so the host-agent requests the state.
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

// learn records the facts in a host's message. For channels that the client resumes by a
// replay, it makes the host-agent request the state.
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

// Teaches reports whether a host's message names file contents or folders. Each client
// must then receive the message through its own gate, which learns these URIs.
func Teaches(reading *view.Reading) bool {
	return reading != nil && slices.ContainsFunc(reading.Facts, func(f view.Fact) bool {
		return f.Thing == view.FileText || f.Thing == view.Folder
	})
}

// isNamed reports whether the host must have named a URI before a client may read it.
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
