package view

import (
	"bytes"
	"slices"

	"ahprelay/ahp"
)

// maxCalls bounds a connection's open requests in one direction.
const maxCalls = 1000

// maxParams bounds the stored params of a request, in bytes.
const maxParams = 2 << 10

// maxCapabilities bounds a client's capabilities, in bytes. Longer capabilities count
// as unknown.
const maxCapabilities = 16 << 10

// A Call is an open request, as needed to read its response.
type Call struct {
	ID      []byte
	Method  string
	Channel string
	URI     string   // params.uri
	Params  []byte   // of a subscribe; nil if they are long
	Resumed []string // the subscriptions of a reconnect

	hello hello
	left  []string // channels from which the client has unsubscribed since the request
	seq   int64    // the host's serverSeq when it was sent
}

// A hello is a client's declaration in initialize or reconnect: its clientId and its
// capabilities.
type hello struct {
	clientID     string
	capabilities []byte // as received; nil: none declared
	unclear      bool   // the declaration is ambiguous or too long
}

// calls are one side's open requests, the oldest first.
type calls []Call

func (c calls) find(id []byte) int {
	return slices.IndexFunc(c, func(one Call) bool { return ahp.SameID(one.ID, id) })
}

// pop removes and returns the request a response answers.
func (c *calls) pop(id []byte) (call Call, ok bool) {
	i := c.find(id)
	if i < 0 {
		return Call{}, false
	}
	call = (*c)[i]
	*c = slices.Delete(*c, i, i+1)
	return call, true
}

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

// ClientIDOf returns the clientId in the params of initialize or reconnect. clear is
// false if the clientId is empty or no text, or if hosts could read it differently. A
// missing clientId is clear, and "": all clients without one share it, because hosts may
// treat them as one client.
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

// opens reports whether a method begins a connection.
func opens(method string) bool { return method == "initialize" || method == "reconnect" }
