package gate

import (
	"bytes"
	"slices"
	"sync"

	"ahprelay/ahp"
)

// maxRequests bounds the requests in one direction of a connection that are
// without an answer.
const maxRequests = 1000

// requests are those of one side that are without an answer. The zero value
// has none.
type requests struct {
	mu   sync.Mutex
	list []request
}

// A request is what its answer is judged by.
type request struct {
	id      []byte
	method  string
	channel string
	uri     string // of createResourceWatch
}

// Refusals of requests whose answers could not be told apart, or not be
// judged.
var (
	sameID  = &refusal{ahp.CodeInvalidRequest, "another request with this id is under way"}
	tooMany = &refusal{ahp.CodeRateLimited, "too many requests are under way"}
)

// add notes a request that goes on.
func (r *requests) add(env *ahp.Envelope) *refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) >= maxRequests {
		return tooMany
	}
	if r.find(env.ID) >= 0 {
		return sameID
	}
	one := request{id: bytes.Clone(env.ID), method: string(env.Method), channel: string(env.Channel)}
	if one.method == "createResourceWatch" {
		one.uri = text(env.Params, "uri")
	}
	r.list = append(r.list, one)
	return nil
}

// remember notes a request whose answer may not come: the oldest make room.
func (r *requests) remember(env *ahp.Envelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) >= maxRequests {
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, request{id: bytes.Clone(env.ID), method: string(env.Method)})
}

// take returns the request that a response answers.
func (r *requests) take(id []byte) (request, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.find(id)
	if i < 0 {
		return request{}, false
	}
	found := r.list[i]
	r.list = slices.Delete(r.list, i, i+1)
	return found, true
}

func (r *requests) find(id []byte) int {
	return slices.IndexFunc(r.list, func(one request) bool { return ahp.SameID(one.id, id) })
}
