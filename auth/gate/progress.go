package gate

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
)

// Bounds for a connection's progress tokens. The oldest make room.
const (
	maxProgress      = 256
	maxProgressToken = 256 // bytes
)

// Hosts send root/progress to all clients, whichever client's request it is about:
// only its token shows that. A client with limited channels gets the progress of its
// own tokens, from requests above the level look: no other request takes long.

// A progress is the set of progress tokens a client has sent on one connection.
type progress struct {
	tokens *simplelru.LRU[string, struct{}]
}

func newProgress() progress {
	tokens, _ := simplelru.NewLRU[string, struct{}](maxProgress, nil) // an error occurs only for a limit of 0
	return progress{tokens}
}

// gives records the token in a client's request that has passed.
func (p progress) gives(env *ahp.Envelope) {
	if m, known := ahp.MethodOn(string(env.Channel), string(env.Method)); env.Kind != ahp.Request || !known || m.Level == ahp.Look {
		return
	}
	if token := progressToken(env.Params); token != "" {
		p.tokens.Add(token, struct{}{})
	}
}

// given reports whether the client has sent the token in the params of root/progress.
func (p progress) given(params []byte) bool {
	token := progressToken(params)
	return token != "" && p.tokens.Contains(token)
}

// progressToken returns the token in some params, or "". A text begins with a quote,
// so that it differs from an equal number.
func progressToken(params []byte) string {
	m := [...]ahp.Member{{Name: "progressToken"}}
	if !ahp.IsObject(params) || ahp.Spelt(params, m[:]) != nil || ahp.IsNone(m[0].Raw) || len(m[0].Raw) > maxProgressToken {
		return ""
	}
	if text, ok := ahp.Text(m[0].Raw); ok {
		return `"` + text
	}
	return string(m[0].Raw)
}
