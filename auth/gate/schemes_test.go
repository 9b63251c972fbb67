package gate_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// A schemeRow is a row of schemes.txt: whether a client may read a URI with this scheme.
type schemeRow struct {
	scheme, rule, uri string
	named             bool
	verdicts          [4]string // the results for the tokens look, files, in and out
}

func readSchemes(t *testing.T) (rows []schemeRow) {
	t.Helper()
	data, err := os.ReadFile("testdata/schemes.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 8 {
			t.Fatalf("%q has %d words; want 8", line, len(f))
		}
		rows = append(rows, schemeRow{scheme: f[0], named: f[1] == "yes", verdicts: [4]string(f[2:6]), rule: f[6], uri: f[7]})
	}
	return rows
}

// names makes the host send a changeset on the channel, with these URIs as contents.
func (c *conn) names(channel string, uris ...string) {
	c.Helper()
	var files []string
	for _, uri := range uris {
		files = append(files, fmt.Sprintf(`{"id":"x","edit":{"before":{"uri":"file:///w/a.txt","content":{"uri":%q}}}}`, uri))
	}
	c.host(fmt.Sprintf(`{"method":"action","params":{"channel":%q,"action":{"type":"changeset/contentChanged","files":[%s]},"serverSeq":9}}`, channel, strings.Join(files, ",")))
}

func (c *conn) reads(uri string) bool {
	c.Helper()
	return c.passes("resourceRead", fmt.Sprintf(`{"channel":"ahp-root://","uri":%q}`, uri))
}

const folderOfS = `{"snapshot":{"resource":"mock:/s","state":{"workingDirectories":["file:///w"]}}}`

// looker returns a connection with this level that is subscribed to the session mock:/s.
func looker(t testing.TB, level auth.Access, files bool, channels ...string) *conn {
	policy := gate.NewPolicy(level, channels, nil, false)
	if files {
		policy = policy.WithFolders()
	}
	c := of(t, policy)
	c.ask("subscribe", `{"channel":"mock:/s"}`, folderOfS)
	return c
}

// TestEachSchemeHasItsVerdicts reads the URI of each row in schemes.txt with each token. The gate
// must decide as the row says.
func TestEachSchemeHasItsVerdicts(t *testing.T) {
	columns := []struct {
		name, session string
		conns         func() []*conn
	}{
		{"look", "s", func() []*conn {
			beside := of(t, withPrivate(gate.NewPolicy(auth.AccessRead, nil, nil, false)))
			beside.ask("subscribe", `{"channel":"mock:/s"}`, folderOfS)
			return []*conn{looker(t, auth.AccessRead, false), looker(t, auth.AccessTalk, false), looker(t, auth.AccessApprove, false), beside}
		}},
		{"files", "s", func() []*conn {
			return []*conn{looker(t, auth.AccessRead, true), looker(t, auth.AccessTalk, true), looker(t, auth.AccessApprove, true), looker(t, auth.AccessRead, true, "mock:/s")}
		}},
		{"in", "s", func() []*conn { return []*conn{looker(t, auth.AccessWrite, false, "mock:/s")} }},
		{"out", "t", func() []*conn {
			return []*conn{looker(t, auth.AccessWrite, false, "mock:/s"), looker(t, auth.AccessRead, true, "mock:/s")}
		}},
	}
	for _, row := range readSchemes(t) {
		if !strings.HasPrefix(row.uri, row.scheme+":") {
			t.Errorf("%s: the table's example is %s; want a URI with that scheme", row.scheme, row.uri)
		}
		for i, column := range columns {
			uri := strings.ReplaceAll(row.uri, "$", column.session)
			for n, c := range column.conns() {
				if column.name == "out" && row.scheme == "file" || column.name == "files" && row.rule == "canvas" && n == 3 {
					continue // a file belongs to no session, and a limited token knows no canvas here
				}
				if row.named {
					c.names("mock:/"+column.session+"/changeset/session", uri)
				}
				if got := c.reads(uri); got != (row.verdicts[i] == "pass") {
					t.Errorf("a read of %s, which the host has named: %v, for %s (%d): passes %v; want %s", uri, row.named, column.name, n, got, row.verdicts[i])
				}
			}
		}
		full := of(t, gate.NewPolicy(auth.AccessWrite, nil, nil, false))
		full.want(row.uri+" with a full token", full.reads(row.uri), true)
	}
}

// TestSchemesTableHasAllRules fails unless schemes.txt has each scheme's rule in the gate.
func TestSchemesTableHasAllRules(t *testing.T) {
	rows := readSchemes(t)
	rules := gate.SchemeRules()
	for _, row := range rows {
		if got := rules[row.scheme]; got != row.rule && (got != "" || row.rule != "unknown") {
			t.Errorf("the gate's rule for %s is %q; want the table's %s", row.scheme, got, row.rule)
		}
	}
	for scheme, rule := range rules {
		if rule != "file" && !slices.ContainsFunc(rows, func(r schemeRow) bool { return r.scheme == scheme }) {
			t.Errorf("the table lacks the scheme %s", scheme)
		}
	}
}

// TestNamesContentReadsPatternsAsTheGate gives a client with the level look all channels and a
// pattern of files, in each spelling. If the client can read a file of the host by the pattern,
// NamesContent must report the pattern.
func TestNamesContentReadsPatternsAsTheGate(t *testing.T) {
	for _, spelling := range []struct{ pattern, file string }{
		{"file:///*", "file:///etc/passwd"},
		{"%66ile:///etc/*", "file:///etc/passwd"},
		{"%66%69%6C%65:///etc/passwd", "file:///etc/passwd"},
		{"file%3A///c:/*", "file:///c:/secret.txt"},
		{"vscode%2Dremote://box/*", "vscode-remote://box/etc/passwd"},
	} {
		c := looker(t, auth.AccessRead, false, auth.All, spelling.pattern)
		if reads := c.reads(spelling.file); !reads || !gate.NamesContent(spelling.pattern) {
			t.Errorf("%s reads %s: %v, and names content: %v; want true, true", spelling.pattern, spelling.file, reads, gate.NamesContent(spelling.pattern))
		}
	}
}

// blobOf returns the URI of a file at a revision in a session's repository, as VS Code's host
// writes it.
func blobOf(session, sha, path string) string {
	return fmt.Sprintf("git-blob:/w/%s?%%7B%%22sessionUri%%22%%3A%%22mock%%3A%%2F%s%%22%%2C%%22sha%%22%%3A%%22%s%%22%%2C%%22repoRelativePath%%22%%3A%%22%s%%22%%7D", path, session, sha, path)
}

// TestOnlyTheNamedRevisionIsRead has the host name a file at a revision. The client may read this
// URI. The gate must refuse each other spelling, place, file and revision.
func TestOnlyTheNamedRevisionIsRead(t *testing.T) {
	named := blobOf("s", "a1b2", "a.txt")
	edit := func(old, new string) string { return strings.Replace(named, old, new, 1) }
	attacks := []string{
		blobOf("s", "HEAD~1", "secret.env"), blobOf("s", "a1b2", "secret.env"), blobOf("s", "c3d4", "a.txt"), blobOf("s", "HEAD@%7B1%7D", "a.txt"),
		blobOf("s", "", "a.txt"), blobOf("s", "a1b2", ""), blobOf("s", "a1b2", ".."), blobOf("s", "a1b2", "../w/a.txt"), blobOf("t", "a1b2", "a.txt"),
		blobOf("s", "a1b2%5E", "a.txt"), blobOf("s", "--output%3D%2Fx", "a.txt"), blobOf("s", "a1b2:secret.env", ""),
		edit("git-blob", "GIT-BLOB"), edit("git-blob", "Git-blob"), edit("git-blob", " git-blob"), edit("git-blob", "git%2Dblob"), edit("git-blob", "git-blob\\u0000"),
		edit("git-blob:", "git-blob:/"), edit("git-blob:/w", "git-blob:///w"), edit("git-blob:/w", "git-blob://w"), edit("/w/a", "/w//a"), edit("/w/a", "/w/./a"), edit("/w/a", "/w/x/../a"),
		edit("a.txt?", "%61.txt?"), edit("a.txt?", "a.txt#"), edit("%7B", "{"), edit("%7B", "%7b"), edit("%7B", "%257B"), edit("sha", "%73ha"), edit("sha", "Sha"),
		edit("%7B", "%7B%22sha%22%3A%22HEAD~1%22%2C"), strings.TrimSuffix(named, "%7D") + "%2C%22sha%22%3A%22HEAD~1%22%7D", strings.TrimSuffix(named, "%7D") + "%2C%22repoRelativePath%22%3A%22secret.env%22%7D",
		strings.TrimSuffix(named, "%7D") + "%2C%22x%22%3A%7B%22sha%22%3A%22HEAD%22%7D%7D", named + "&sha=HEAD", named + "#x", named + "%20", named + " ", named + "/", named + "?",
		"git-blob:/w/a.txt", "git-blob:", "git-blob:?", "git-blob", named[:len(named)-3],
		"vscode-agent-host://c/w/a.txt?_ah=" + base64.RawURLEncoding.EncodeToString([]byte(`{"scheme":"git-blob"}`)),
	}
	for _, c := range []*conn{looker(t, auth.AccessRead, true), looker(t, auth.AccessApprove, true), looker(t, auth.AccessRead, true, "mock:/s"), looker(t, auth.AccessWrite, true, "mock:/s")} {
		c.names("mock:/s/changeset/session", named)
		c.want("the named one", c.reads(named), true)
		for _, uri := range attacks {
			c.ask("subscribe", fmt.Sprintf(`{"channel":%q}`, uri), `{}`) // a host may grant this subscription
			for _, method := range []string{"resourceRead", "resourceList", "resourceResolve", "createResourceWatch", "resourceWrite", "resourceDelete", "resourceMkdir", "resourceRequest"} {
				c.want(method+" of "+uri, c.passes(method, fmt.Sprintf(`{"channel":"ahp-root://","uri":%q}`, uri)), false)
			}
			c.want("a copy of "+uri, c.passes("resourceCopy", fmt.Sprintf(`{"channel":"ahp-root://","source":%q,"destination":"mock:/s/x"}`, uri)), false)
			c.want("a move of "+uri, c.passes("resourceMove", fmt.Sprintf(`{"channel":"ahp-root://","source":%q,"destination":"mock:/s/x"}`, uri)), false)
			c.want("a read by an object", c.passes("resourceRead", fmt.Sprintf(`{"channel":"ahp-root://","uri":{"scheme":"git-blob","path":"/w/a.txt","query":%q}}`, uri)), false)
			watch := "ahp-resource-watch://r/" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"root":%q}`, uri))
			c.want("a watch of "+uri, c.subscribes(watch), false)
			c.want("an attachment "+uri, !strings.Contains(c.ask("createChat", fmt.Sprintf(`{"channel":"mock:/s","initialMessage":{"attachments":[{"type":"resource","uri":%q}]}}`, uri), "null"), `"error"`), false)
		}
		for _, uri := range []string{blobOf("s", "HEAD~1", "secret.env"), edit("git-blob", "GIT-BLOB"), "git-blob:/w/a.txt"} {
			c.want("it as a canvas's: "+uri, c.passes("canvasReadResource", fmt.Sprintf(`{"channel":"mock:/s/canvas","uri":%q}`, uri)), false)
			c.want("it as an MCP server's: "+uri, c.passes("resources/read", fmt.Sprintf(`{"channel":"mcp://s/1","uri":%q}`, uri)), false)
			c.want("it as a channel: "+uri, c.subscribes(uri), false)
			c.want("it to begin with: "+uri, c.passes("initialize", fmt.Sprintf(`{"clientId":"c","initialSubscriptions":[%q]}`, uri)), false)
		}
		c.want("the named one, after all that", c.reads(named), true)
	}
}

// TestOnlyTheHostNamesContents names a revision by messages that are not the host's own, on another
// connection, or in another session. The client must not read it, until the host names it itself.
func TestOnlyTheHostNamesContents(t *testing.T) {
	blob := blobOf("s", "HEAD~1", "secret.env")
	edit := fmt.Sprintf(`{"type":"fileEdit","before":{"uri":"file:///w/a.txt","content":{"uri":%q}}}`, blob)
	action := func(channel, action, more string) string {
		return fmt.Sprintf(`{"method":"action","params":{"channel":%q,"action":%s,"serverSeq":5%s}}`, channel, action, more)
	}
	files := `{"type":"changeset/contentChanged","files":[{"id":"x","edit":` + edit + `}]}`
	for name, message := range map[string]string{
		"a client":                action("mock:/s/changeset/session", files, `,"origin":{"clientId":"c","clientSeq":1}`),
		"a rejected action":       action("mock:/s/changeset/session", files, `,"rejectionReason":"no"`),
		"a client's tool":         action("mock:/s/chat", `{"type":"chat/responsePart","part":{"toolCall":{"contributor":{"kind":"client","clientId":"c"},"content":[`+edit+`]}}}`, ""),
		"an MCP server's tool":    action("mock:/s/chat", `{"type":"chat/responsePart","part":{"toolCall":{"contributor":{"kind":"mcp"},"content":[`+edit+`]}}}`, ""),
		"an attachment":           action("mock:/s/chat", `{"type":"chat/turnStarted","message":{"text":"x","attachments":[`+edit+`]}}`, ""),
		"words":                   action("mock:/s/chat", fmt.Sprintf(`{"type":"chat/responsePart","part":{"kind":"markdown","content":%q}}`, blob), ""),
		"content of another type": action("mock:/s/chat", `{"type":"chat/toolCallContentChanged","content":[`+strings.Replace(edit, "fileEdit", "resource", 1)+`]}`, ""),
		"metadata":                action("mock:/s/chat", `{"type":"chat/responsePart","part":{"_meta":{"edits":{"items":[`+edit+`]}}}}`, ""),
	} {
		for _, c := range []*conn{looker(t, auth.AccessRead, true), looker(t, auth.AccessRead, true, "mock:/s")} {
			c.host(message)
			c.want("a revision that is named by "+name, c.reads(blob), false)
		}
	}
	limited := looker(t, auth.AccessRead, true, "mock:/s")
	limited.host(action("mock:/t/changeset/session", files, ""))
	limited.want("a revision that is named on a channel out of reach", limited.reads(blob), false)

	// The host names it to another client.
	h := view.NewHost(gate.Key)
	policy := gate.NewPolicy(auth.AccessRead, nil, nil, false).WithFolders()
	one, two := &conn{TB: t, gate: chainOf(policy, h)}, &conn{TB: t, gate: chainOf(policy, h)}
	one.ask("subscribe", `{"channel":"mock:/s"}`, folderOfS)
	two.ask("subscribe", `{"channel":"mock:/s"}`, folderOfS)
	one.names("mock:/s/changeset/session", blob)
	one.want("a revision that is named here", one.reads(blob), true)
	two.want("a revision that is named on another connection", two.reads(blob), false)

	// The host names it itself, in each message with edits.
	for name, message := range map[string]string{
		"a changeset":  action("mock:/s/changeset/session", files, ""),
		"a file of it": action("mock:/s/changeset/session", `{"type":"changeset/fileSet","file":{"id":"x","edit":`+edit+`}}`, ""),
		"a tool call":  action("mock:/s/chat", `{"type":"chat/toolCallComplete","result":{"content":[`+edit+`]}}`, ""),
		"an approval":  action("mock:/s/chat", `{"type":"chat/toolCallReady","edits":{"items":[`+edit+`]}}`, ""),
	} {
		c := looker(t, auth.AccessRead, true, "mock:/s")
		c.host(message)
		c.want("a revision that the host names in "+name, c.reads(blob), true)
	}
}

// TestReplayAsksTheHostForState resumes clients. After a replay, which does not repeat what the
// host has named, the host-agent must request the state of these channels.
func TestReplayAsksTheHostForState(t *testing.T) {
	for _, test := range []struct {
		name, result string
		policy       gate.Policy
		want         []string
	}{
		{"a replay", `{"type":"replay","actions":[],"missing":["mock:/gone"]}`, gate.NewPolicy(auth.AccessRead, nil, nil, false), []string{"mock:/s", "mock:/s/changeset/session"}},
		{"a replay by channel", `{"channels":[{"kind":"replay","channel":"mock:/s","actions":[]},{"kind":"missing","channel":"mock:/gone"}]}`, gate.NewPolicy(auth.AccessRead, nil, nil, false), []string{"mock:/s"}},
		{"snapshots", `{"type":"snapshot","snapshots":[{"resource":"mock:/s","state":{}}]}`, gate.NewPolicy(auth.AccessRead, nil, nil, false), nil},
		{"a refusal", `null`, gate.NewPolicy(auth.AccessRead, nil, nil, false), nil},
		{"a token for one session", `{"type":"replay","actions":[]}`, gate.NewPolicy(auth.AccessWrite, []string{"mock:/s"}, nil, false), []string{"mock:/s", "mock:/s/changeset/session"}},
	} {
		c := of(t, test.policy)
		list := `["ahp-root://","mock:/s","mock:/s/changeset/session","agenthost-terminal:/1","ahp-canvas:/1","mock:/gone"]`
		if test.policy.Writes() {
			list = `["ahp-root://","mock:/s","mock:/s/changeset/session"]`
		}
		request := `{"id":1,"method":"reconnect","params":{"clientId":"c","lastSeenServerSeq":1,"subscriptions":` + list + `}}`
		c.gate.FromClient([]byte(request), peek(t, request))
		answer := `{"id":1,"result":` + test.result + `}`
		_, said := c.gate.FromHost([]byte(answer), peek(t, answer))
		var got []string
		for _, ask := range said.Asks {
			got = append(got, ask.Channel)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("after %s the host is asked for %q; want %q", test.name, got, test.want)
		}
	}
}

// TestOnlyOfferedOptionsAreChosen has a client with the level approve choose options. The gate must
// permit only options that the host has offered for this tool call.
func TestOnlyOfferedOptionsAreChosen(t *testing.T) {
	for name, offer := range map[string]string{
		"an action":        `{"method":"action","params":{"channel":"mock:/s/chat","action":{"type":"chat/toolCallReady","toolCallId":"1","options":[{"id":"once"},{"id":"no"}]},"serverSeq":5}}`,
		"the session":      `{"method":"action","params":{"channel":"mock:/s","action":{"type":"session/inputNeededSet","request":{"chat":"mock:/s/chat","toolCall":{"toolCallId":"1","options":[{"id":"once"},{"id":"no"}]}}},"serverSeq":5}}`,
		"the chat's state": `{"method":"channel/snapshot","params":{"channel":"mock:/s/chat","snapshot":{"resource":"mock:/s/chat","state":{"activeTurn":{"responseParts":[{"toolCall":{"toolCallId":"1","options":[{"id":"once"},{"id":"no"}]}}]}}}}}`,
		"an MCP server's":  `{"method":"action","params":{"channel":"mock:/s/chat","action":{"type":"chat/responsePart","part":{"toolCall":{"toolCallId":"1","contributor":{"kind":"mcp"},"options":[{"id":"once"},{"id":"no"}]}}},"serverSeq":5}}`,
	} {
		c := looker(t, auth.AccessApprove, false, "mock:/s")
		chooses := func(call, option string) bool {
			message := fmt.Sprintf(`{"method":"dispatchAction","params":{"channel":"mock:/s/chat","clientSeq":1,"action":{"type":"chat/toolCallConfirmed","turnId":"1","toolCallId":%s,"approved":true,"confirmed":"user-action","selectedOptionId":%s}}}`, call, option)
			return c.gate.FromClient([]byte(message), peek(t, message)).Verdict == gate.Pass
		}
		c.want("an option before it is offered", chooses(`"1"`, `"once"`), false)
		c.host(offer)
		for _, choice := range [][2]string{{`"1"`, `"always"`}, {`"2"`, `"once"`}, {`"1"`, `"Once"`}, {`"1"`, `""`}, {`"1"`, `["once"]`}, {`["1"]`, `"once"`}, {`"1"`, `7`}} {
			c.want(fmt.Sprintf("%s of the call %s after %s", choice[1], choice[0], name), chooses(choice[0], choice[1]), false)
		}
		c.want("an offered option after "+name, chooses(`"1"`, `"\u006fnce"`), true)
		c.want("no option", chooses(`"1"`, `null`), true)
	}
	c := looker(t, auth.AccessApprove, false, "mock:/s")
	c.host(`{"method":"action","params":{"channel":"mock:/t/chat","action":{"type":"chat/toolCallReady","toolCallId":"1","options":[{"id":"once"}]},"serverSeq":5}}`)
	message := `{"method":"dispatchAction","params":{"channel":"mock:/s/chat","clientSeq":1,"action":{"type":"chat/toolCallConfirmed","turnId":"1","toolCallId":"1","approved":true,"selectedOptionId":"once"}}}`
	c.want("an option of a call out of reach", c.gate.FromClient([]byte(message), peek(t, message)).Verdict == gate.Pass, false)
}
