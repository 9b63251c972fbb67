package gate

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// Bounds of the progress tokens that are kept of a connection. The oldest make room.
const (
	maxProgress      = 256
	maxProgressToken = 256 // bytes
)

// Hosts send root/progress to all clients, whichever client's request it is about: only
// the token in it tells. A client with limited channels gets the progress of the tokens
// that it has given itself, in a request that changes something: nothing else takes long.

// A progress is the set of progress tokens that a client has given on one connection.
type progress struct {
	tokens *simplelru.LRU[string, struct{}]
}

func newProgress() progress {
	tokens, _ := simplelru.NewLRU[string, struct{}](maxProgress, nil) // fails only where there is no limit
	return progress{tokens}
}

// gives takes the token of a request of the client's that has passed.
func (p progress) gives(env *ahp.Envelope) {
	if m, known := methodOf(env); env.Kind != ahp.Request || !known || m.level() == auth.AccessRead {
		return
	}
	if token := progressToken(env.Params); token != "" {
		p.tokens.Add(token, struct{}{})
	}
}

// given reports whether the params of root/progress have a token that the client has given.
func (p progress) given(params []byte) bool {
	token := progressToken(params)
	return token != "" && p.tokens.Contains(token)
}

// progressToken returns the token in some params, "" for none: a text begins with a quote,
// however it is spelled.
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
