package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// TestWindowsOwnActionsAreSettled sends actions that VS Code's window sends without its user, and
// that the client may not send. The host must get none. The gate must echo each to the client as
// accepted, with the host's last serverSeq. The echo has drafts, read marks and entries as sent,
// but no settings, so that the client keeps the host's settings.
func TestWindowsOwnActionsAreSettled(t *testing.T) {
	const (
		draft    = `{"type":"chat/draftChanged","draft":{"text":"hel"}}`
		command  = `{"type":"chat/draftChanged","draft":{"text":"!ls"}}`
		chatRead = `{"type":"chat/isReadChanged","isRead":true}`
		read     = `{"type":"session/isReadChanged","isRead":true}`
		entry    = `{"type":"session/activeClientSet","activeClient":` + full + `}`
		settings = `{"type":"root/configChanged","config":{"autoApprove":true},"replace":true}`
		none     = `{"type":"root/configChanged","config":{}}`
	)
	long := `{"type":"session/activeClientSet","activeClient":{"clientId":"c","displayName":"` + strings.Repeat("x", 64<<10) + `"}}`
	look, talk, operate := auth.AccessRead, auth.AccessTalk, auth.AccessWrite
	session := []string{"mock:/s"}
	for _, test := range []struct {
		level                 auth.Access
		channels              []string
		channel, action, echo string
	}{
		{look, nil, "mock:/s/chat", draft, draft},
		{look, session, "mock:/s/chat", draft, draft},
		{look, nil, "mock:/s/chat", command, command},
		{talk, nil, "mock:/s/chat", command, command},
		{talk, session, "mock:/t/chat", draft, draft},
		{operate, session, "mock:/t/chat", draft, draft},
		{look, nil, "mock:/s/chat", chatRead, chatRead},
		{look, nil, "mock:/s", read, read},
		{look, session, "mock:/s", entry, entry},
		{talk, session, "mock:/t", entry, entry},
		{talk, nil, "mock:/s", long, long},
		{look, nil, "ahp-root://", settings, none},
		{talk, nil, "ahp-root://", settings, none},
		{auth.AccessApprove, session, "ahp-root://", settings, none},
		{operate, session, "ahp-root://", settings, none},
	} {
		c := talker(t, gate.NewPolicy(test.level, test.channels, nil, false))
		c.host(`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/s","action":{"type":"session/titleChanged","title":"x"},"serverSeq":9}}`)
		message := fmt.Sprintf(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":%q,"clientSeq":3,"action":%s}}`, test.channel, test.action)
		want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":%q,"action":%s,"serverSeq":9,"origin":{"clientId":"c","clientSeq":3}}}`, test.channel, test.echo)
		d := c.gate.FromClient([]byte(message), peek(t, message))
		if d.Verdict != gate.Settle || string(d.Message) != want {
			t.Errorf("%s, channels %v: %.200s: verdict %d, %.300s; want %d, %.300s", test.level, test.channels, test.action, d.Verdict, d.Message, gate.Settle, want)
		}
	}
}

// TestAmbiguousActionsAreRejected sends an action of VS Code's window with the key channel in two
// spellings. The gate must reject it, and not echo it as accepted.
func TestAmbiguousActionsAreRejected(t *testing.T) {
	c := talker(t, gate.NewPolicy(auth.AccessRead, nil, nil, false))
	message := `{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"mock:/s/chat","Channel":"mock:/t","clientSeq":3,"action":{"type":"chat/draftChanged"}}}`
	if got := fromClient(t, c.gate, "dispatchAction", message); got != "echo" {
		t.Errorf("%s; want echo", got)
	}
}
