package hostagent

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// confirms returns the host's echo of a client's answer to a tool call.
func confirms(clientID, call string, seq int, more string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","serverSeq":%d,"origin":{"clientId":%q,"clientSeq":1},`+
		`"action":{"type":"chat/toolCallConfirmed","turnId":"t","toolCallId":%q,"approved":true}%s}}`, seq, clientID, call, more)
}

// TestAnswersNameTheirGiver has two people confirm tool calls. The request relay/answers must
// return who answered on which device, in the host's order, also if the host writes serverSeq as a
// floating-point number. Only a client that is subscribed to the chat may get this.
func TestAnswersNameTheirGiver(t *testing.T) {
	inWorld(t, func(w *world) {
		enter := func(subject, device string) (*remote, *fakeSocket) {
			open := of(subject)
			open.Device = device
			r := w.openAs(w.relay, open)
			side := w.hostSide()
			r.send(greeting("initialize", "client-"+subject))
			r.send(`{"jsonrpc":"2.0","id":2,"method":"subscribe","params":{"channel":"ahp-chat:/1"}}`)
			return r, side
		}
		w.host.set(func() {
			w.host.answers = func(env ahp.Envelope) string {
				if string(env.Method) != "subscribe" {
					return answersAll(env)
				}
				return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"snapshot":{"resource":"ahp-chat:/1","state":{"turns":[]},"fromSeq":1}}}`, env.ID)
			}
		})
		ada, adas := enter("ada", "phone")
		_, bobs := enter("bob", "")
		asks := func(r *remote) string {
			r.hear()
			r.send(`{"jsonrpc":"2.0","id":9,"method":"relay/answers","params":{"channel":"ahp-chat:/1"}}`)
			return r.hear()
		}

		bobs.toUs <- confirms("client-bob", "both", 8, "") // read first, but with a later serverSeq
		adas.toUs <- confirms("client-ada", "both", 7, "")
		adas.toUs <- confirms("client-bob", "of bob, seen by ada", 9, "")
		adas.toUs <- confirms("client-ada", "refused", 10, `,"rejectionReason":"no"`)
		bobs.toUs <- strings.Replace(confirms("client-bob", "second", 11, ""), ":11,", ":11.0,", 1)
		got := asks(ada)
		for _, want := range []string{`"id":"both","subject":"ada","device":"phone","at":`, `"id":"second","subject":"bob","at":`} {
			if !strings.Contains(got, want) {
				t.Errorf("ada got %s; want %s", got, want)
			}
		}
		if strings.Contains(got, "refused") || strings.Contains(got, "seen by") {
			t.Errorf("ada got %s; want only the answers that her connection gave and the host accepted", got)
		}

		// A client without access to the chat gets an error, and the host-agent never passes the
		// request to the host.
		eve := w.openAs(w.relay, routing.Open{ID: "c-eve", Subject: "eve", Access: "read", Channels: []string{"s:/2"}})
		eves := w.hostSide()
		eve.send(greeting("initialize", "client-eve"))
		if got := asks(eve); !strings.Contains(got, "-32009") {
			t.Errorf("eve got %s; want a refusal", got)
		}
		for _, side := range []*fakeSocket{adas, eves} {
			if strings.Contains(strings.Join(side.messages(), ""), answersMethod) {
				t.Error("the host received the request for answers; want the host-agent to answer it")
			}
		}
		w.wantRefused("eve", 1)
	})
}

// TestMovedChatHidesItsAnswers moves a chat to another session. A client of the first session is
// still subscribed to the chat, but must no longer get the people who answered in it.
func TestMovedChatHidesItsAnswers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.host.set(func() {
			w.host.answers = func(env ahp.Envelope) string {
				if string(env.Method) != "subscribe" {
					return answersAll(env)
				}
				return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"snapshot":{"resource":%q,"state":{"chats":[{"resource":"ahp-chat:/1"}]},"fromSeq":1}}}`, env.ID, env.Channel)
			}
		})
		ada := w.openAs(w.relay, routing.Open{ID: "c-ada", Subject: "ada", Access: "write", Channels: []string{"s:/1"}})
		side := w.hostSide()
		ada.send(greeting("initialize", "client-ada"))
		for i, channel := range []string{"s:/1", "ahp-chat:/1"} {
			ada.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscribe","params":{"channel":%q}}`, i+2, channel))
		}
		asks := func() string {
			ada.hear()
			ada.send(`{"jsonrpc":"2.0","id":9,"method":"relay/answers","params":{"channel":"ahp-chat:/1"}}`)
			return ada.hear()
		}
		side.toUs <- confirms("client-ada", "call", 7, "")
		if got := asks(); !strings.Contains(got, `"id":"call"`) {
			t.Errorf("before the move, the client got %s; want the answer", got)
		}
		side.toUs <- `{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1","serverSeq":8,"action":{"type":"session/chatRemoved","chat":"ahp-chat:/1"}}}`
		if got := asks(); strings.Contains(got, `"id":"call"`) || !strings.Contains(got, "-32009") {
			t.Errorf("after the move, the client got %s; want a refusal", got)
		}
	})
}

// wantRefused fails unless n messages of a subject were refused, and none of the others'.
func (w *world) wantRefused(subject string, n int64) {
	w.Helper()
	for _, one := range w.agent.list().Clients {
		if want := map[string]int64{subject: n}[one.Subject]; one.Refused != want {
			w.Errorf("%d messages of %s were refused; want %d", one.Refused, one.Subject, want)
		}
	}
}

// TestGivenAnswersAreBounded notes more answers than the bound. The oldest answer must be dropped,
// and an answer with a long id is not noted.
func TestGivenAnswersAreBounded(t *testing.T) {
	var g givenAnswers
	for i := range maxGiven + 1 {
		g.note(givenKey{"c", "k", fmt.Sprint(i)}, giver{Subject: "ada"}, int64(i))
	}
	g.note(givenKey{"c", "k", strings.Repeat("x", maxGivenID+1)}, giver{Subject: "ada"}, 0)
	if list := g.on("c"); len(list) != maxGiven || list[0].ID != "1" {
		t.Errorf("the host-agent remembers %d answers, beginning with %s; want %d, beginning with 1", len(list), list[0].ID, maxGiven)
	}
}
