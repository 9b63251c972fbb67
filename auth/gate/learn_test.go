package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/auth/gate"
)

const terminals = `[{"type":"terminal","resource":"ahp-terminal:/1"}]`

// memberCases lists members of actions. After an action with the member, the URI belongs must be in
// the client's reach.
var memberCases = []struct{ member, belongs string }{
	{`"chats":[{"resource":"u:/1"}]`, "u:/1"},
	{`"defaultChat":"u:/1"`, "u:/1"},
	{`"chat":"u:/1"`, "u:/1"},
	{`"chat":{"resource":"u:/1"}`, "u:/1"},
	{`"summary":{"resource":"u:/1"}`, "u:/1"},
	{`"changesets":[{"uriTemplate":"u:/1/{id}"}]`, "u:/1/x"},
	{`"openCanvases":[{"channel":"u:/1"}]`, "u:/1"},
	{`"customizations":[{"channel":"mcp://1"}]`, "mcp://1"},
	{`"customization":{"children":[{"channel":"mcp://1"}]}`, "mcp://1"},
	{`"annotations":{"resource":"u:/1"}`, "u:/1"},
	{`"inputNeeded":[{"chat":"u:/1"}]`, "u:/1"},
	{`"request":{"chat":"u:/1"}`, "u:/1"},
	{`"channel":"mcp://1"`, "mcp://1"},
	{`"turns":[{"responseParts":[{"toolCall":{"content":` + terminals + `}}]}]`, "ahp-terminal:/1"},
	{`"activeTurn":{"responseParts":[{"toolCall":{"content":` + terminals + `}}]}`, "ahp-terminal:/1"},
	{`"part":{"toolCall":{"content":` + terminals + `}}`, "ahp-terminal:/1"},
	{`"content":` + terminals, "ahp-terminal:/1"},
	{`"result":{"content":` + terminals + `}`, "ahp-terminal:/1"},
	{`"instanceId":"i1"`, "ahp-canvas-content:/i1"},
}

const canvas = "ahp-canvas:/7"

// spellings returns JSON objects that contain the member in different but equal forms.
func spellings(member string) []string {
	letter := strings.IndexAny(member, "abcdefghijklmnopqrstuvwxyz")
	escaped := fmt.Sprintf(`%s\u%04x%s`, member[:letter], member[letter], member[letter+1:])
	spaced := strings.Replace(member, ":", " :\n\t", 1)
	return []string{
		"{" + member + "}", `{"type":"x/y","n":{"a":[1]},"text":"\"{[",` + member + "}", "{" + escaped + "}", " { " + spaced + ` , "n" : [ ] } `,
	}
}

// sees returns whether the client may subscribe to a URI, or read it as canvas content. If the URI
// is a terminal, the host's answer claims it for the canvas.
func (c *conn) sees(channel string) bool {
	c.Helper()
	if strings.HasPrefix(channel, "ahp-canvas-content:") {
		return c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, channel+"/index.html"))
	}
	state := `{"claim":{"kind":"session","session":"` + canvas + `"}}`
	got := c.ask("subscribe", fmt.Sprintf(`{"channel":%q}`, channel), fmt.Sprintf(`{"snapshot":{"resource":%q,"state":%s}}`, channel, state))
	return !strings.Contains(got, `"error"`)
}

// TestActionsExtendReach fails unless an action with each member adds its URI to the client's
// reach.
func TestActionsExtendReach(t *testing.T) {
	for _, test := range memberCases {
		for _, action := range spellings(test.member) {
			c := limited(t, nil, canvas)
			c.want(test.belongs+" before "+action, c.sees(test.belongs), false)
			c.host(`{"method":"action","params":{"channel":"` + canvas + `","action":` + action + `,"serverSeq":6}}`)
			c.want(test.belongs+" after "+action, c.sees(test.belongs), true)
		}
	}
}

// TestReachCacheChangesNothing sends notifications on more channels than the gate caches. The
// decisions must stay the same, and the cache within its bound.
func TestReachCacheChangesNothing(t *testing.T) {
	c := limited(t, nil, "mock:/*")
	for range 2 {
		for i := range 3 * gate.MaxInReach {
			c.want("in reach", c.hears(fmt.Sprintf("mock:/%d", i)), true)
			c.want("again", c.hears(fmt.Sprintf("mock:/%d", i)), true)
			c.want("out of reach", c.hears(fmt.Sprintf("mick:/%d", i)), false)
			if n := gate.InReach(c.gate); n == 0 || n > gate.MaxInReach {
				t.Fatalf("%d channels are remembered; want 1 to MaxInReach", n)
			}
		}
	}
}

// TestContentIsNoChannel has a tool's output name the URI of another session. The client may read
// the URI as content, and may not use it as a channel.
func TestContentIsNoChannel(t *testing.T) {
	for _, uri := range []string{"mock:/2", "ahp-chat:/2"} {
		c := limited(t, nil, "mock:/1")
		c.host(fmt.Sprintf(`{"method":"action","params":{"channel":"mock:/1/chat","action":{"type":"chat/toolCallComplete","result":{"content":[{"type":"terminal","resource":"term:/1","result":{"fullOutput":{"uri":%q}}}]}},"serverSeq":6}}`, uri))
		c.want("reading "+uri, c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, uri)), true)
		c.want("subscribe to "+uri, c.subscribes(uri), false)
		c.want("notification of "+uri, c.hears(uri), false)
		c.want("a turn in "+uri, c.passes("fetchTurns", fmt.Sprintf(`{"channel":%q}`, uri)), false)
	}
}
