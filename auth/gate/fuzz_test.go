package gate_test

import (
	"bytes"
	"testing"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// FuzzAuthority passes arbitrary messages of a client and a host through the gate. Replacements and
// answers must be readable messages, and the input bytes must stay unchanged.
func FuzzAuthority(f *testing.F) {
	f.Add([]byte(`{"id":1,"method":"initialize","params":{"clientId":"a","initialSubscriptions":["mock:/1"]}}`), []byte(`{"id":1,"result":{"snapshots":[{"resource":"mock:/1","state":`+sessionState+`},{"resource":"ahp-root://","state":{"agents":7,"terminals":{}}}]}}`))
	f.Add([]byte(`{"id":1,"method":"reconnect","params":{"subscriptions":[7,{}]}}`), []byte(`{"id":1,"result":{"actions":[{"channel":"ahp-root://","action":{"type":"root/terminalsChanged","terminals":[1]}},3],"snapshots":{}}}`))
	f.Add([]byte(`{"id":1,"method":"subscribe","params":{"channel":"ahp-root://"}}`), []byte(`{"id":1,"result":{"snapshot":null}}`))
	f.Add([]byte(`{"id":1,"method":"listSessions"}`), []byte(`{"id":1,"result":[1]}`))
	f.Add([]byte(`{"method":"dispatchAction","params":{"channel":"x","clientSeq":{},"action":"\ud800"}}`), []byte(`{"method":"channel/frame","params":{"channel":"mock:/1","actions":[{"channel":"mock:/1","action":{"result":{"content":[{"type":"terminal","resource":"t:1"}]}}}]}}`))
	f.Add([]byte(`{"id":1,"method":"createChat","params":{"channel":"mock:/1","source":[[[[[[["mock:/2"]]]]]]]}}`), []byte(`{"id":"x","method":"canvasOpen","params":{"channel":"mock:/2"}}`))
	f.Add([]byte(`{"id":1,"method":"resourceRead","params":{"uri":"`+blobOf("1", "a1b2", "a.txt")+`"}}`), []byte(`{"method":"action","params":{"channel":"mock:/1/changeset/x","action":{"type":"changeset/contentChanged","files":[{"edit":{"before":{"content":{"uri":"`+blobOf("1", "a1b2", "a.txt")+`"}}}}]}}}`))
	f.Add([]byte(`{"method":"dispatchAction","params":{"channel":"mock:/1/chat","clientSeq":1,"action":{"type":"chat/toolCallConfirmed","toolCallId":"1","selectedOptionId":"a"}}}`), []byte(`{"method":"action","params":{"channel":"mock:/1/chat","action":{"type":"chat/toolCallReady","toolCallId":"1","options":[{"id":"a"},7]}}}`))
	f.Add([]byte(`{"method":"dispatchAction","params":{"channel":"mock:/1/chat","clientSeq":1,"action":{"type":"chat/turnStarted","message":{"text":"\ufeff!","attachments":[{"type":"simple","range":{"start":{"line":1}}},{"annotationIds":[1]}]}}}}`), []byte(`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","chats":[{"x":1}],"project":{"uri":[]}}}}`))
	f.Add([]byte(`{"id":1,"method":"createSession","params":{"channel":"mock:/1","progressToken":7}}`), []byte(`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":7}}`))
	f.Fuzz(func(t *testing.T, client, host []byte) {
		for _, access := range []auth.Access{auth.AccessRead, auth.AccessApprove, auth.AccessWrite} {
			for _, channels := range [][]string{nil, {"mock:/1", "file:///*"}} {
				g := chainOf(gate.NewPolicy(access, channels, []string{"*"}, true).WithFolders(), nil)
				for range 2 {
					judged(t, client, g.FromClient)
					judged(t, host, func(message []byte, env *ahp.Envelope) gate.Decision { return fromHost(g, string(message), env) })
				}
			}
		}
	})
}

func judged(t *testing.T, message []byte, judge func([]byte, *ahp.Envelope) gate.Decision) {
	env, err := ahp.Peek(message)
	if err != nil {
		return
	}
	before := bytes.Clone(message)
	d := judge(message, &env)
	if !bytes.Equal(message, before) {
		t.Errorf("the gate changed the message %s to %s; want it as it was", before, message)
	}
	if d.Message == nil {
		return
	}
	if _, err := ahp.Peek(d.Message); err != nil {
		t.Errorf("the gate's message %s for %s cannot be read: %v", d.Message, before, err)
	}
}
