package gate

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
)

// Limits for the progress tokens on a connection. When a limit is reached, the oldest
// token is dropped.
const (
	maxProgress      = 256
	maxProgressToken = 256 // bytes
)

// Hosts send root/progress to all clients. Only the token in it shows which client's
// request it is about. A client with limited channels gets the progress for its own
// tokens from requests above the level look, because other requests are fast.

// A progress is the set of progress tokens that a client has sent on a connection.
type progress struct {
	tokens *simplelru.LRU[string, struct{}]
}

func newProgress() progress {
	tokens, _ := simplelru.NewLRU[string, struct{}](maxProgress, nil) // an error occurs only for a limit of 0
	return progress{tokens}
}

// gives records the progress token in a client's request that passes, unless the request
// has the level look.
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

// progressToken returns the token in params, or "". The quote at a text's beginning
// distinguishes the text from an equal number.
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
