package scripted

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/agenthost"
)

// A demo adds sessions with a history to the host, and runs turn after turn in one of
// them.
type demo struct {
	agent *scripted
	still bool

	once sync.Once
	live *agenthost.Chat
	wait *agenthost.Chat // its session waits for an answer after ShowDemo
}

// tasksIcon shows three lines on a green disc: 16 by 16, SVG.
const tasksIcon = "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIHZpZXdCb3g9IjAgMCAxNiAxNiI+PHJlY3Qgd2lkdGg9IjE2IiBoZWlnaHQ9IjE2IiByeD0iOCIgZmlsbD0iIzBmNzY2ZSIvPjxwYXRoIGQ9Ik00LjUgNS41aDdNNC41IDhoN000LjUgMTAuNWg0IiBzdHJva2U9IiNmZmYiIHN0cm9rZS13aWR0aD0iMS40Ii8+PC9zdmc+"

type demoTurn struct{ prompt, reply string }

// A Demo gives a host sessions with a history. In one of them, slow turns run one after
// the other, unless Still is set. The sessions are made at the first connection. If the
// host's configuration has no files, canvases or MCP servers, the demo adds its own.
type Demo struct{ Still bool }

func (d Demo) setUp(cfg *agenthost.Config, a *scripted) {
	if cfg.Root == "" && cfg.Files == nil {
		cfg.Files = demoFiles
	}
	if cfg.Canvases == nil {
		cfg.Canvases = []agenthost.Canvas{{ID: "notes"}, {ID: "notes-loopback", Mode: agenthost.CanvasLoopback}}
	}
	if cfg.MCP == nil {
		cfg.MCP = []agenthost.MCPServer{{Name: "tasks", Icons: []agenthost.MCPIcon{{Src: tasksIcon}}}}
	}
	a.demo = &demo{agent: a, still: d.Still}
	if len(cfg.Canvases) > 0 {
		a.canvas = cfg.Canvases[0].ID
	}
}

// demoSessions is the history of a demo host.
var demoSessions = []struct {
	name, title, directory string
	turns                  []demoTurn
}{
	{"live", "Watching the build", "file:///demo/shop", []demoTurn{
		{"Keep an eye on the build and tell me what happens.", "I will. I report here as it goes on."},
	}},
	{"login", "Fix the flaky login test", "file:///demo/shop", []demoTurn{
		{"TestLogin fails about once in twenty runs. Can you find out why?",
			"The test compares the expiry of the session with the clock, but reads the clock twice. When a second passes in between, it fails.\n\n" +
				"I would pass the clock in:\n\n```go\nfunc newSession(now time.Time) session\n```"},
		{"Yes, do that.", "Done. 500 runs with `-race` passed."},
	}},
	{"notes", "Release notes for 2.4", "", []demoTurn{
		{"Summarise the changes since 2.3 in three sentences.",
			"Search understands quotes now. Exports of more than 10,000 rows no longer time out. " +
				"The settings page has been rebuilt, and loads in half the time."},
	}},
}

var demoFiles = map[string]string{
	"/demo/shop/README.md": "# Shop\n\nA shop that exists in a demonstration only.\n",
	"/demo/shop/session.go": "package shop\n\nimport \"time\"\n\n" +
		"type session struct{ expires time.Time }\n\n" +
		"func newSession(now time.Time) session {\n\treturn session{expires: now.Add(time.Hour)}\n}\n",
}

// demoTalk is the text of the live session; after the last turn, it begins again.
var demoTalk = []demoTurn{
	{"What is the build doing?", "Compiling the 214 packages of the shop. The cache helps with most of them, so this takes a few seconds only."},
	{"And now?", "Running the tests of the cart. 312 of 318 have passed so far, and none has failed."},
	{"How long will it take?", "About two minutes. The slow ones come last: they start a browser and click through a whole order."},
	{"Anything that I should look at?", "One warning: the image of the landing page is 4 MB. It would be 300 KB as WebP."},
	{"Is it done?", "Yes. All tests have passed, and the image has been pushed. I begin again with the next commit."},
}

const (
	demoWord     = time.Second      // between words in the live session
	demoBreak    = 5 * time.Second  // between its turns
	demoTurnsMax = 200              // then the chat is emptied
	demoAge      = 26 * time.Hour   // of the oldest session
	demoStep     = 20 * time.Minute // between past turns
)

// Start implements [agenthost.Starter].
func (a *scripted) Start(*agenthost.Host) func(ctx context.Context) {
	if a.demo == nil {
		return nil
	}
	a.demo.once.Do(a.demo.begin)
	if a.demo.still || a.demo.live == nil {
		return nil
	}
	return a.demo.speak
}

func (a *scripted) clock() time.Time {
	if a.now == nil {
		return time.Now()
	}
	return a.now()
}

// begin makes the sessions.
func (d *demo) begin() {
	at := d.agent.clock().Add(-demoAge)
	for _, past := range demoSessions {
		made := agenthost.Made{Name: past.name, Title: past.title, Created: at}
		if past.directory != "" {
			made.Folders = []string{past.directory}
		}
		for _, t := range past.turns {
			made.Past = append(made.Past, agenthost.Exchange{Prompt: t.prompt, Reply: t.reply, At: at})
			at = at.Add(demoStep)
		}
		chat, err := d.agent.host.Make(Provider, made)
		if err != nil {
			return // the host has more sessions than it admits
		}
		switch past.name {
		case "live":
			d.live = chat
		case "login":
			d.wait = chat
		case "notes":
			d.openCanvas(chat, "Mention the new search.")
		}
		at = at.Add(3 * time.Hour)
	}
}

// openCanvas opens the first host canvas in a session, with a note. It returns the
// canvas's channel, or "".
func (d *demo) openCanvas(chat *agenthost.Chat, note string) string {
	if d.agent.canvas == "" {
		return ""
	}
	channel, err := d.agent.host.OpenCanvas(chat.Session(), d.agent.canvas, nil)
	if err != nil {
		return "" // the demo goes on without it
	}
	_, _ = d.agent.host.InvokeCanvas(channel, "add", map[string]string{"text": note}) // on an error, the canvas has no note
	return channel
}

// demoQuestion is the prompt in the session that waits for an answer.
const demoQuestion = "Please add a test for that."

// ShowDemo prepares a host with a [Demo] for a visitor: it opens a canvas in the live
// session, and makes another session wait for a permission. It returns the live session
// and the canvas's channel.
func ShowDemo(h *agenthost.Host) (session, canvas string) {
	a, ok := h.Agent(Provider).(*scripted)
	if !ok || a.demo == nil {
		return "", ""
	}
	a.demo.once.Do(a.demo.begin)
	canvas = a.demo.openCanvas(a.demo.live, "The image of the landing page is 4 MB.")
	_ = a.demo.wait.Say(demoQuestion) // fails if a turn runs already
	return a.demo.live.Session(), canvas
}

// plays plays the demo's own prompts. It returns false for other prompts.
func (d *demo) plays(s *script, prompt string) bool {
	if prompt == delegated {
		s.sleep(thinking)
		s.echo("You said: there are none", 20*time.Millisecond)
		return true
	}
	if d == nil {
		return false
	}
	if prompt == demoQuestion {
		s.askEdit()
		return true
	}
	i := slices.IndexFunc(demoTalk, func(t demoTurn) bool { return t.prompt == prompt })
	if i < 0 {
		return false
	}
	s.echo(demoTalk[i].reply, demoWord)
	return true
}

// speak plays the turns of the live session one after another, until the session or the
// host ends. It waits while another turn runs.
func (d *demo) speak(ctx context.Context) {
	for next, pause := 0, demoBreak; ; {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = demoBreak
		d.live.Keep(demoTurnsMax)
		t := demoTalk[next%len(demoTalk)]
		switch err := d.live.Say(t.prompt); {
		case err == nil:
			next++
			pause += time.Duration(len(strings.Fields(t.reply))+1) * demoWord
		case !errors.Is(err, agenthost.ErrBusy):
			return
		}
	}
}
