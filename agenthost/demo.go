package agenthost

import (
	"encoding/json"
	"strings"
	"time"
)

// A demo keeps a turn running in one session.
type demo struct {
	host *Host
	chat *chat
	next int // index in demoTalk
}

type demoTurn struct{ prompt, reply string }

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

// demoFiles are the sessions' files.
var demoFiles = map[string]string{
	"/demo/shop/README.md": "# Shop\n\nA shop that exists in a demonstration only.\n",
	"/demo/shop/session.go": "package shop\n\nimport \"time\"\n\n" +
		"type session struct{ expires time.Time }\n\n" +
		"func newSession(now time.Time) session {\n\treturn session{expires: now.Add(time.Hour)}\n}\n",
}

// demoTalk is the live session's text, in a loop.
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
	demoTurnsMax = 200              // then the chat starts again, empty
	demoAge      = 26 * time.Hour   // of the oldest session
	demoStep     = 20 * time.Minute // between past turns
)

// startDemoLocked creates the demo's sessions, once.
func (h *Host) startDemoLocked() {
	if !h.cfg.Demo || h.demo != nil {
		return
	}
	h.demo = &demo{host: h}
	at := h.cfg.Now().Add(-demoAge)
	for _, past := range demoSessions {
		var directories []string
		if past.directory != "" {
			directories = []string{past.directory}
		}
		s := h.sessions.addSessionLocked(providerName+":/"+past.name, directories, at)
		s.title = past.title
		for _, t := range past.turns {
			s.chat.turns = append(s.chat.turns, h.pastTurnLocked(t, at))
			s.chat.modified, s.modified = at, at
			at = at.Add(demoStep)
		}
		s.announced = s.summary()
		at = at.Add(3 * time.Hour)
	}
	h.openDemoCanvasLocked(h.demoSessionLocked("notes"), "Mention the new search.")
	h.demo.chat = h.demoSessionLocked("live").chat
	if !h.cfg.Still {
		h.afterLocked(demoBreak, h.demo.speakLocked)
	}
}

// openDemoCanvasLocked opens the first host canvas in a session, with a note. It returns
// the canvas's channel, or "".
func (h *Host) openDemoCanvasLocked(s *session, note string) string {
	if len(h.cfg.Canvases) == 0 {
		return ""
	}
	v, err := h.canvases.newCanvasLocked(s, h.cfg.Canvases[0].ID, nil)
	if err == nil {
		v.notes = []string{note}
		err = h.canvases.addCanvasLocked(v)
	}
	if err != nil {
		h.log.Warn("the demo has no canvas", "error", err)
		return ""
	}
	return v.channel
}

// demoQuestion is the prompt of the demo's session that waits for an answer.
const demoQuestion = "Please add a test for that."

// ShowDemo prepares a demo host for a visitor: a canvas is open beside the live session,
// and a different session waits for a permission. It returns the live session and its
// canvas's channel.
func ShowDemo(h *Host) (session, canvas string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.startDemoLocked()
	live, asking := h.demoSessionLocked("live"), h.demoSessionLocked("login")
	canvas = h.openDemoCanvasLocked(live, "The image of the landing page is 4 MB.")
	asking.chat.startDemoTurnLocked(demoQuestion, (*script).askEdit)
	return live.uri, canvas
}

func (h *Host) demoSessionLocked(name string) *session {
	s, _ := h.sessions.get(providerName + ":/" + name)
	return s
}

func (h *Host) pastTurnLocked(t demoTurn, at time.Time) *turn {
	h.parts++
	duration := int64(1000 * len(strings.Fields(t.reply)) / 4)
	return &turn{
		ID:            h.cfg.NewID(),
		StartedAt:     timestamp(at),
		Duration:      &duration,
		Message:       userMessage(t.prompt),
		ResponseParts: []any{newMarkdown(partID(h.parts), t.reply)},
		State:         "complete",
	}
}

func userMessage(text string) json.RawMessage {
	return encode(struct {
		Text   string      `json:"text"`
		Origin plainOrigin `json:"origin"`
	}{text, plainOrigin{"user"}})
}

// speakLocked plays the live session's next turn unless a client is talking there, and
// schedules itself again. It ends with the session.
func (d *demo) speakLocked() {
	h, ch := d.host, d.chat
	if h.chats[ch.uri] != ch {
		return
	}
	if ch.active != nil {
		h.afterLocked(demoBreak, d.speakLocked)
		return
	}
	if len(ch.turns) >= demoTurnsMax {
		ch.turns = nil
		h.emitLocked(ch.uri, plainAction{"chat/truncated"})
	}
	t := demoTalk[d.next%len(demoTalk)]
	d.next++
	ch.startDemoTurnLocked(t.prompt, func(s *script) { s.echo(t.reply, demoWord) })
	words := len(strings.Fields(t.reply))
	h.afterLocked(time.Duration(words+1)*demoWord+demoBreak, d.speakLocked)
}

// startDemoTurnLocked starts a turn without a client.
func (ch *chat) startDemoTurnLocked(prompt string, play func(*script)) {
	h := ch.session.host
	started := turnStartedAction{
		Type:      "chat/turnStarted",
		TurnID:    h.cfg.NewID(),
		StartedAt: timestamp(h.cfg.Now()),
		Message:   userMessage(prompt),
	}
	ch.applyLocked(started, own(ch.uri, started))
	ch.runLocked(len(strings.Fields(prompt)), play)
}
