package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// TestAttachmentsOutOfReachAreRefused sends messages with attachments. Wherever hosts look for
// attachments, the gate must refuse a resource outside the client's reach.
func TestAttachmentsOutOfReachAreRefused(t *testing.T) {
	c := limited(t, nil, "mock:/1", "file:///home/ada/project/*")
	says := func(action string) bool {
		message := `{"method":"dispatchAction","params":{"channel":"mock:/1/chat","clientSeq":1,"action":` + action + `}}`
		d := c.gate.FromClient([]byte(message), peek(t, message))
		if d.Verdict == gate.Answer && !strings.Contains(string(d.Message), "rejectionReason") {
			t.Errorf("the action of %s is answered %s; want a rejection", message, d.Message)
		}
		return d.Verdict == gate.Pass
	}
	for attachment, want := range map[string]bool{
		`{"type":"chat","resource":"mock:/1/other"}`:                                 true,
		`{"type":"resource","uri":"file:///home/ada/project/main.go"}`:               true,
		`{"type":"simple","label":"mock:/2","modelRepresentation":"mock:/2"}`:        true,
		`{"type":"resource","uri":"https://example.com/"}`:                           true,
		`{"type":"resource","uri":"vscode-agent-client://me/file/-/home/x"}`:         true,
		`{"type":"chat","resource":"mock:/2/chat"}`:                                  false,
		`{"type":"chat","label":"x","nested":[{"resource":"mock:/2/chat"}]}`:         false,
		`{"type":"chat","r\u0065source":"mock:\/2"}`:                                 false,
		`{"type":"chat","Resource":"mock:/2"}`:                                       false,
		`{"type":"chat","resource":"ahp-chat:/never-heard-of"}`:                      false,
		`{"type":"resource","uri":"file:///etc/passwd"}`:                             false,
		`{"type":"resource","uri":["file:///home/ada/project/x","file:///etc"]}`:     false,
		`{"type":"chat","chat":"mock:/2/chat"}`:                                      false,
		`{"type":"chat","resource":{"scheme":"mock","path":"/2/chat"}}`:              false,
		`{"type":"chat","resource":["mock:/1",{"scheme":"mock","path":"/2"}]}`:       false,
		`{"type":"simple","label":"x","range":{"start":{"line":1}},"uri":"mock:/1"}`: true,
		`{"type":"chat","resource":null,"label":{"text":"x"}}`:                       true,
		`{"type":"resource","resource":"\ud800"}`:                                    false,
	} {
		for _, action := range []string{
			`{"type":"chat/turnStarted","message":{"text":"x","attachments":[%s]}}`,
			`{"type":"chat/pendingMessageSet","pendingMessage":{"message":{"text":"x","Attachments":[{"type":"simple"},%s]}}}`,
			`{"attachm\u0065nts":%s,"type":"chat/later"}`,
		} {
			text := fmt.Sprintf(action, attachment)
			c.want(text, says(text), want)
		}
		c.want("createChat with "+attachment, c.passes("createChat", `{"channel":"mock:/1","initialMessage":{"attachments":[`+attachment+`]}}`), want)
	}
	// Other members are text, in which hosts look for no resources.
	c.want("words", says(`{"type":"x","message":{"attachments":[],"resource":"mock:/2","text":"attachments"},"uri":"mock:/2"}`), true)

	full := chainOf(gate.NewPolicy(auth.AccessWrite, nil, nil, false), nil)
	message := `{"method":"dispatchAction","params":{"channel":"mock:/1","action":{"message":{"attachments":[{"resource":"mock:/2"}]}}}}`
	if d := full.FromClient([]byte(message), peek(t, message)); d.Verdict != gate.Pass {
		t.Errorf("an attachment from a client with a full token is answered %s; want it to pass", d.Message)
	}
}

// BenchmarkAttachments measures the gate for a long message with attachments.
func BenchmarkAttachments(b *testing.B) {
	message := `{"method":"dispatchAction","params":{"channel":"mock:/1","action":{"message":` + strings.Repeat(`{"attachments":[`, 300) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat(`]}`, 300) + `}}}`
	c, env := limited(b, nil, "mock:/1"), peek(b, message)
	b.SetBytes(int64(len(message)))
	for b.Loop() {
		c.gate.FromClient([]byte(message), env)
	}
}
