package view

import (
	"bytes"
	"slices"

	"ahprelay/ahp"
)

// maxCalls bounds the requests in one direction of a connection that are
// without an answer.
const maxCalls = 1000

// maxParams bounds the params of a request that are kept, in bytes.
const maxParams = 2 << 10

// maxCapabilities bounds the capabilities of a client, in bytes: of one that has
// more, they are not known.
const maxCapabilities = 16 << 10

// A Call is a request that has gone on, by which its answer is read.
type Call struct {
	ID      []byte
	Method  string
	Channel string
	URI     string   // params.uri
	Params  []byte   // of a subscribe; nil if they are long
	Resumed []string // the subscriptions of a reconnect

	hello hello
	left  []string // what the client has unsubscribed from since
	seq   int64    // how far the host was when it was sent
}

// hello is what a client says of itself when a connection begins.
type hello struct {
	clientID     string
	capabilities []byte // as it came; nil: it has declared none
	unclear      bool   // it can be read in more than one way, or is too long
}

// calls are the requests of one side, the oldest first.
type calls []Call

func (c calls) find(id []byte) int {
	return slices.IndexFunc(c, func(one Call) bool { return ahp.SameID(one.ID, id) })
}

// pop returns the request that a response answers.
func (c *calls) pop(id []byte) (call Call, ok bool) {
	i := c.find(id)
	if i < 0 {
		return Call{}, false
	}
	call = (*c)[i]
	*c = slices.Delete(*c, i, i+1)
	return call, true
}

// newCall reads a request.
func newCall(env *ahp.Envelope) Call {
	call := Call{ID: bytes.Clone(env.ID), Method: string(env.Method), Channel: string(env.Channel)}
	m := [...]ahp.Member{{Name: "uri"}, {Name: "capabilities"}, {Name: "subscriptions"}}
	if !ahp.IsObject(env.Params) {
		return call
	}
	if ahp.Members(env.Params, m[:]) != nil {
		call.hello.unclear = true
		return call
	}
	call.URI, _ = ahp.Text(m[0].Raw)
	if call.Method == "subscribe" && len(env.Params) <= maxParams {
		call.Params = bytes.Clone(env.Params)
	}
	if !opens(call.Method) {
		return call
	}
	id, clear := ClientIDOf(env.Params)
	call.hello.clientID, call.hello.unclear = id, !clear || len(m[1].Raw) > maxCapabilities
	if !ahp.IsNone(m[1].Raw) && !call.hello.unclear {
		call.hello.capabilities = bytes.Clone(m[1].Raw)
	}
	if call.Method != "reconnect" {
		return call
	}
	for _, e := range ahp.ElementsOf(m[2].Raw) {
		if len(call.Resumed) == maxSubscribed {
			break
		}
		uri, ok := ahp.Text(e.Raw)
		if !ok {
			uri = ahp.TextOf(e.Raw, "channel")
		}
		call.Resumed = append(call.Resumed, uri)
	}
	return call
}

// ClientIDOf returns the clientId in the params of initialize or reconnect: clear is
// false for one that not every host reads alike. To say none is to have one too, that
// of all who say none: hosts may take them for one client.
func ClientIDOf(params []byte) (id string, clear bool) {
	if !ahp.IsObject(params) {
		return "", true
	}
	m := [...]ahp.Member{{Name: "clientId"}}
	if ahp.Spelt(params, m[:]) != nil {
		return "", false
	}
	id, _ = ahp.Text(m[0].Raw)
	return id, id != "" || m[0].Raw == nil
}

// opens reports whether a request is one that a connection begins with.
func opens(method string) bool { return method == "initialize" || method == "reconnect" }
