package hostagent

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
)

// TestAuditHasNoContents sends actions and requests that hold a secret. The log must name
// approvals, terminal input, file writes and authentications, without the secret. The log must have
// no lines for chat messages, reading requests and refused requests.
func TestAuditHasNoContents(t *testing.T) {
	inWorld(t, func(w *world) {
		var log bytes.Buffer
		w.agent.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		ada := w.openAs(w.relay, of("ada"))
		w.hostSide()
		say := func(channel, action string) {
			ada.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":%q,"clientSeq":1,"action":%s}}`, channel, action))
		}
		say("mock:/1/chat", `{"type":"chat/turnStarted","message":{"text":"secret"}}`)
		say("mock:/1/chat", `{"type":"chat/toolCallConfirmed","toolCallId":"tc-1","approved":true,"editedToolInput":"secret"}`)
		say("mock:/1/chat", `{"type":"chat/toolCallConfirmed","toolCallId":"tc-2","approved":false,"reasonMessage":"secret"}`)
		say("t:/1", `{"type":"terminal/input","data":"secret"}`)
		ada.send(`{"jsonrpc":"2.0","id":1,"method":"resourceWrite","params":{"channel":"ahp-root://","uri":"file:///home/x","data":"secret"}}`)
		ada.send(`{"jsonrpc":"2.0","id":2,"method":"authenticate","params":{"channel":"ahp-root://","resource":"x","token":"secret"}}`)
		ada.send(`{"jsonrpc":"2.0","id":3,"method":"listSessions","params":{"channel":"ahp-root://"}}`)
		reader := of("cleo")
		reader.Access = "read"
		w.openAs(w.relay, reader).send(`{"jsonrpc":"2.0","id":1,"method":"resourceWrite","params":{"channel":"ahp-root://","uri":"file:///home/y"}}`)
		synctest.Wait()
		for _, want := range []string{
			"event=approve tool_call=tc-1 channel=mock:/1/chat token=t-ada", "event=deny tool_call=tc-2 channel=mock:/1/chat",
			"event=terminal action=terminal/input channel=t:/1", "event=file method=resourceWrite channel=ahp-root:// uri=file:///home/x", "event=authenticate",
		} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("want exactly one line with %q in the log:\n%s", want, log.String())
			}
		}
		for _, not := range []string{"secret", "listSessions", "turnStarted", "home/y"} {
			if strings.Contains(log.String(), not) {
				t.Errorf("the log contains %q; want no contents of messages:\n%s", not, log.String())
			}
		}
	})
}
