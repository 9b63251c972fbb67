package scripted

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"ahprelay/agenthost"
)

// showPrompt returns the script for a prompt that shows features of a host, or nil.
// Each prompt has its branch.
func showPrompt(prompt string) func(*script) {
	switch prompt {
	case "show everything":
		return (*script).showEverything
	case "edit":
		return (*script).askEdit
	case "danger":
		return (*script).askDanger
	case "ask":
		return func(s *script) { s.askUser(askAll) }
	case "ask choice":
		return func(s *script) { s.askUser(askChoice) }
	case "ask text":
		return func(s *script) { s.askUser(askText) }
	case "ask url":
		return func(s *script) { s.askUser(askURL) }
	case "plan":
		return func(s *script) { s.askUser(askPlan) }
	case "subagent":
		return (*script).useSubagent
	case "hostile":
		return (*script).showHostile
	}
	name, number, _ := strings.Cut(prompt, " ")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > maxShown {
		return nil
	}
	switch name {
	case "history":
		return func(s *script) { s.addHistory(n) }
	case "sessions":
		return func(s *script) { s.addSessions(n) }
	case "talk":
		return func(s *script) { s.talk(n) }
	}
	return nil
}

// maxShown bounds the items created by a prompt.
const maxShown = 10_000

// part adds a constant part in JSON.
func (s *script) part(raw string) {
	s.Publish(agenthost.PartAction{Type: "chat/responsePart", TurnID: s.ID(), Part: json.RawMessage(raw)})
}

const showMarkdown = "# What was found\n\nThe test reads the **clock twice**. See [the notes](https://example.com/notes), and `session.go`.\n\n" +
	"| package | tests | time |\n|---|---:|---:|\n| cart | 318 | 2.1 s |\n| session | 41 | 0.3 s |\n\n" +
	"1. Pass the clock in.\n2. Run it 500 times:\n   - with `-race`,\n   - without.\n\n" +
	"```go\nfunc newSession(now time.Time) session {\n\treturn session{expires: now.Add(time.Hour)} // one hour\n}\n```\n\n> Nothing else depends on it.\n\n- [x] found\n- [ ] mended\n"

const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// showEverything adds all kinds of parts, including an unknown kind.
func (s *script) showEverything() {
	s.part(`{"kind":"reasoning","id":"think","content":"The test fails once in twenty runs. That smells of **time**."}`)
	s.say(showMarkdown)
	s.part(`{"kind":"systemNotification","content":{"markdown":"The build in the background has **ended**."}}`)
	s.part(`{"kind":"contentRef","uri":"file:///demo/shop/README.md","contentType":"text/markdown"}`)
	s.part(`{"kind":"x-hologram","shape":"cube","note":"of a version to come"}`)
	s.quickTool("search", "grep", "Search", `{"pattern":"time.Now","path":"/demo/shop"}`, "Searched for time.Now", agenthost.TextContent{Type: "text", Text: "session.go:8: func newSession(now time.Time) session {"})
	s.quickTool("web", "web_fetch", "Fetch", `{"url":"https://example.com/notes"}`, "Read a page", agenthost.TextContent{Type: "text", Text: "Notes on clocks"})
	s.quickTool("image", "screenshot", "Screenshot", "", "Took a picture", json.RawMessage(`{"type":"embeddedResource","contentType":"image/png","data":"`+onePixel+`"}`), json.RawMessage(`{"type":"x-smell","of":"roses"}`))
	s.quickTool("edited", "edit_file", "Edit", "", "Changed session.go", json.RawMessage(`{"type":"fileEdit",`+editOf+`}`))
	s.Publish(agenthost.ToolStartAction{Type: "chat/toolCallStart", TurnID: s.ID(), ToolCallID: "tc-failed", ToolName: "bash", DisplayName: "Shell"})
	s.Publish(agenthost.ToolReadyAction{Type: "chat/toolCallReady", TurnID: s.ID(), ToolCallID: "tc-failed", InvocationMessage: "go test ./cart", ToolInput: inputText(`{"command":"go test ./cart"}`), Confirmed: "setting"})
	s.Publish(agenthost.ToolCompleteAction{Type: "chat/toolCallComplete", TurnID: s.ID(), ToolCallID: "tc-failed", Result: agenthost.ToolResult{
		PastTenseMessage: "Ran go test ./cart", Content: []any{agenthost.TextContent{Type: "text", Text: "\x1b[31mFAIL\x1b[0m cart 2.1s\n"}}, Error: &agenthost.ToolError{Message: "exit status 1"},
	}})
	s.limits = []agenthost.Limit{{Name: "five_hour", Used: 0.38, Resets: time.Now().Add(2 * time.Hour)}, {Name: "seven_day", Used: 0.93, Resets: time.Now().Add(50 * time.Hour)}}
	s.say("That is everything.")
}

// quickTool uses a tool without confirmation.
func (s *script) quickTool(id, name, display, input, past string, content ...any) {
	id = "tc-" + id
	s.Publish(agenthost.ToolStartAction{Type: "chat/toolCallStart", TurnID: s.ID(), ToolCallID: id, ToolName: name, DisplayName: display})
	s.Publish(agenthost.ToolReadyAction{Type: "chat/toolCallReady", TurnID: s.ID(), ToolCallID: id, InvocationMessage: past, ToolInput: inputText(input), Confirmed: "not-needed"})
	s.Publish(agenthost.ToolCompleteAction{Type: "chat/toolCallComplete", TurnID: s.ID(), ToolCallID: id, Meta: quickRun,
		Result: agenthost.ToolResult{PastTenseMessage: past, Content: content, Success: true}})
}

// quickRun makes each quick tool appear to have taken 3 s.
var quickRun = json.RawMessage(`{"agenthost.ran":{"startedAt":"2026-11-02T10:00:00Z","durationMs":3000}}`)

func dataURI(text string) string {
	return "data:text/plain;base64," + base64.StdEncoding.EncodeToString([]byte(text))
}

const sessionGo = "package shop\n\nimport \"time\"\n\ntype session struct{ expires time.Time }\n\nfunc newSession() session {\n\treturn session{expires: time.Now().Add(time.Hour)}\n}\n"

// editOf holds the members of a FileEdit.
var editOf = fmt.Sprintf(`"before":{"uri":"file:///demo/shop/session.go","content":{"uri":%q}},"after":{"uri":"file:///demo/shop/session.go","content":{"uri":%q}},"diff":{"added":2,"removed":2}`,
	dataURI(sessionGo), dataURI(strings.NewReplacer("newSession()", "newSession(now time.Time)", "time.Now()", "now").Replace(sessionGo)))

var newFileOf = fmt.Sprintf(`"after":{"uri":"file:///demo/shop/session_test.go","content":{"uri":%q}},"diff":{"added":3,"removed":0}`,
	dataURI("package shop\n\n// Tests come here.\n"))

// askEdit asks for permission to change two files.
func (s *script) askEdit() {
	s.ask(agenthost.ToolReadyAction{
		ToolCallID: "tc-edit", InvocationMessage: "Edit session.go and add a test", ConfirmationTitle: "Change 2 files?", Options: confirmOptions,
		Edits: json.RawMessage(`{"items":[{` + editOf + `},{` + newFileOf + `}]}`),
		Risk:  json.RawMessage(`{"kind":"judge","status":"complete","reason":"Changes stay in the folder.","safety":0.9}`),
	}, "edit_file", "Edit")
}

// askDanger asks for permission to run a dangerous command, with a judge's
// warning.
func (s *script) askDanger() {
	s.ask(agenthost.ToolReadyAction{
		ToolCallID: "tc-danger", InvocationMessage: "Delete the build directory", ConfirmationTitle: "Run in the terminal?", ToolInput: inputText(`rm -rf "$BUILD"/*`),
		Options: confirmOptions, Editable: true,
		Risk: json.RawMessage(`{"kind":"judge","status":"complete","reason":{"markdown":"If BUILD is empty, this deletes everything below /."},"safety":0.1}`),
	}, "bash", "Shell")
}

// approvePrompt begins the prompt that makes the agent ask for a permission given as
// JSON, and the message that changes the pending request.
const approvePrompt = "approve "

// askFor asks for permission with members of a chat/toolCallReady.
func (s *script) askFor(members string) error {
	ready := agenthost.ToolReadyAction{ToolCallID: askedFor, Options: confirmOptions}
	if err := json.Unmarshal([]byte(members), &ready); err != nil {
		return &agenthost.TurnError{ErrorType: "approve", Message: err.Error()}
	}
	s.ask(ready, "bash", "Shell")
	return nil
}

// askedFor is the id of askFor's tool call.
const askedFor = "tc-asked"

// ask starts a tool and waits for the first answer from any client.
func (s *script) ask(ready agenthost.ToolReadyAction, name, display string) {
	ready.Type, ready.TurnID = "chat/toolCallReady", s.ID()
	s.Publish(agenthost.ToolStartAction{Type: "chat/toolCallStart", TurnID: s.ID(), ToolCallID: ready.ToolCallID, ToolName: name, DisplayName: display})
	approved, err := s.askFirst(ready)
	if err != nil {
		return
	}
	if approved && ready.Edits != nil {
		s.conversation.chat.Edited("file:///demo/shop/session.go", json.RawMessage("{"+editOf+"}"))
		s.conversation.chat.Edited("file:///demo/shop/session_test.go", json.RawMessage("{"+newFileOf+"}"))
	}
	if approved {
		s.completeTool(ready.ToolCallID, "Done", agenthost.TextContent{Type: "text", Text: "ok"})
		s.say("Done, as you allowed.")
	} else {
		s.say("Then not.")
	}
}

const (
	askAll = `"message":"Before I begin, **a few things**:","questions":[` +
		`{"id":"name","kind":"text","title":"Name","message":"What is the branch called?","required":true,"max":40},` +
		`{"id":"runs","kind":"integer","title":"Runs","message":"How often shall I run it?","min":1,"max":1000,"defaultValue":500},` +
		`{"id":"race","kind":"boolean","title":"Race detector","message":"With the race detector?","defaultValue":true},` +
		`{"id":"where","kind":"single-select","title":"Where","message":"Where does it run?","options":[{"id":"here","label":"Here","recommended":true},{"id":"ci","label":"CI","description":"Slower, and cleaner"}],"allowFreeformInput":true},` +
		`{"id":"what","kind":"multi-select","title":"What","message":"Which packages?","options":[{"id":"cart","label":"cart"},{"id":"session","label":"session"},{"id":"web","label":"web"}],"min":1}]`
	askChoice = `"message":"The plan is ready.","questions":[{"id":"plan","kind":"single-select","message":"How shall I go on?","required":true,` +
		`"options":[{"id":"go","label":"Do it","recommended":true},{"id":"step","label":"Step by step","description":"Ask before each change"},{"id":"no","label":"Plan anew"}]}]`
	// The same as VS Code's host when Copilot has a plan.
	askPlan = `"_meta":{"purpose":"planReview"},"planReview":{"title":"Review the plan","content":"1. Pass the clock **in**.\n2. Run the test 500 times.","planUri":"file:///demo/shop/README.md",` +
		`"actions":[{"id":"autopilot","label":"Go on by itself","description":"Ask for nothing more"},{"id":"interactive","label":"Go on, and ask","default":true},{"id":"exit_only","label":"Only leave the plan"}],` +
		`"canProvideFeedback":true,"answerQuestionId":"how"},"questions":[{"kind":"single-select","id":"how","title":"Review the plan","message":"How shall I go on?","required":true,` +
		`"options":[{"id":"autopilot","label":"Go on by itself"},{"id":"interactive","label":"Go on, and ask","recommended":true},{"id":"exit_only","label":"Only leave the plan"}],"allowFreeformInput":true}]`
	askText = `"questions":[{"id":"name","kind":"text","message":"What is the branch called?","required":true}]`
	askURL  = `"message":"Please look at the preview.","url":"https://example.com/preview"`
)

// askUser asks a question and repeats the answer.
func (s *script) askUser(members string) {
	request := map[string]any{}
	if err := json.Unmarshal([]byte(`{`+members+`}`), &request); err != nil {
		panic(err) // all callers pass constants
	}
	response, answers, err := s.PublishQuestion(request)
	if err != nil {
		return
	}
	said, err := json.Marshal(answers)
	if err != nil {
		panic(err) // the answers were decoded from JSON
	}
	s.say(fmt.Sprintf("You answered: %s %s", response, said))
}

// delegated is the message to a subagent. Its answer is "You said: there are none".
const delegated = "Look for other clocks"

// useSubagent makes a new chat in the session do the work.
func (s *script) useSubagent() {
	uri := s.conversation.chat.Delegate(delegated, "tc-agent", delegated)
	s.quickTool("agent", "task", "Task", "", "Asked another agent",
		json.RawMessage(fmt.Sprintf(`{"type":"subagent","resource":%q,"title":%q,"description":"in all packages"}`, uri, delegated)))
	s.say("Another agent has looked.")
}

// showHostile sends texts that a malicious host might send.
func (s *script) showHostile() {
	const script = `<img src=x onerror="window.owned=1"><script>window.owned=1</script><svg onload="window.owned=1">`
	s.say(script + "\n\n[click](javascript:window.owned=1) [data](data:text/html,<script>window.owned=1</script>) ![leak](https://leak.invalid/picture.png)\n\n" +
		"<style>*{display:none}</style><form action=https://leak.invalid><button style=\"position:fixed;inset:0\">Allow</button></form>\n\n" +
		"<a id=prompt name=send class=composer href=\"https://leak.invalid\">x</a> [x](https://leak.invalid \"\\\" onmouseover=window.owned=1 x=\")\n\n" +
		"```\"><script>window.owned=1</script>\n</code></pre><script>window.owned=1</script>\n```")
	s.quickTool("hostile", script, script, script, script, agenthost.TextContent{Type: "text", Text: "\x1b]0;owned\x07\x1b]8;;javascript:window.owned=1\x07link\x1b]8;;\x07 " + script},
		json.RawMessage(`{"type":"embeddedResource","contentType":"image/svg+xml","data":"`+base64.StdEncoding.EncodeToString([]byte(`<svg xmlns="http://www.w3.org/2000/svg"><script>parent.owned=1</script><image href="https://leak.invalid/x.png"/></svg>`))+`"}`),
		json.RawMessage(`{"type":"embeddedResource","contentType":"image/png\" onerror=\"window.owned=1","data":"x"}`),
		json.RawMessage(`{"type":"resource","uri":"javascript:window.owned=1"}`))
	s.part(`{"kind":"` + strings.ReplaceAll(script, `"`, `\"`) + `"}`)
	s.part(`{"kind":"toolCall","toolCall":null}`)
}

// talkPause separates two words in a long answer.
const talkPause = 5 * time.Millisecond

// talk writes n words like an agent: paragraphs, lists and code.
func (s *script) talk(n int) {
	words := strings.SplitAfter(strings.Repeat(showMarkdown+"\nThe test ran on both machines, with and without the race detector, and did not fail again. The last step is to write this down.\n\n", 1+n/60), " ")
	part := s.say("")
	for _, word := range words[:n] {
		if !s.delta(part, word) || !s.sleep(talkPause) {
			return
		}
	}
}

// addHistory puts n turns before the existing turns.
func (s *script) addHistory(n int) {
	past := make([]agenthost.Exchange, n)
	started := s.conversation.agent.clock()
	for i := range past {
		past[i] = agenthost.Exchange{
			Prompt: fmt.Sprintf("Question %d", i), Reply: fmt.Sprintf("Answer **%d**\n\n```go\nreturn %d\n```", i, i),
			At: started.Add(-time.Duration(n-i) * time.Minute),
		}
	}
	s.conversation.chat.Prepend(past)
}

// addSessions adds n sessions, or as many as the host permits.
func (s *script) addSessions(n int) {
	started := s.conversation.agent.clock()
	for i := range n {
		_, err := s.host().Make(Provider, agenthost.Made{
			Title: fmt.Sprintf("Session %d", i), Folders: []string{"file:///demo/shop"}, Created: started.Add(-time.Duration(i) * time.Hour),
		})
		if err != nil {
			return
		}
	}
}
