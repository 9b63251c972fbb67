package acp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ahprelay/test/acpagent"
)

// unasked starts a session and ends a turn. The agent then does what prompt demands,
// without being asked. quiet is the pause after which such work ends.
func unasked(t *testing.T, prompt string, quiet time.Duration) *talk {
	t.Helper()
	store := t.TempDir()
	s := newSite(t, acpagent.Options{Store: store, With: "load resume"}, func(c *Config) { c.Quiet = quiet })
	k := s.connect(t).begin(s, "s1", nil)
	k.prompt("behind " + prompt)
	if end := k.end(); end != "turnComplete" {
		t.Fatalf("the prompt's turn ends with %s; want turnComplete", end)
	}
	if err := acpagent.Go(store); err != nil {
		t.Fatal(err)
	}
	return k
}

// TestWordsBehindATurn lets an agent go on after a turn's end. Its work becomes a
// separate turn, in which the agent can ask questions.
func TestWordsBehindATurn(t *testing.T) {
	k := unasked(t, "run ls", 50*time.Millisecond)
	started := k.until("chat/turnStarted")
	if got := fmt.Sprint(started["message"]); !strings.Contains(got, "systemNotification") {
		t.Errorf("the agent's own turn begins with %s; want a systemNotification", got)
	}
	k.confirm(started["turnId"].(string), k.asked(), true, "once")
	if end := k.end(); end != "turnComplete" {
		t.Errorf("the agent's own turn ends with %s; want turnComplete", end)
	}
	if got, want := k.last(), "tool completed ls ran ls\nmarkdown: done: ls"; got != want {
		t.Errorf("the turn is\n%s\nwant\n%s", got, want)
	}
	k.works()
}

// TestPromptEndsAnUnaskedTurn sends a prompt while the agent works unasked. The unasked
// turn ends, and its text stays in the history.
func TestPromptEndsAnUnaskedTurn(t *testing.T) {
	k := unasked(t, "word", time.Hour)
	k.until("chat/responsePart")
	k.prompt("think")
	k.end()
	k.end()
	turns, _ := k.state(k.chat)["turns"].([]any)
	if len(turns) != 3 {
		t.Fatalf("%d turns; want 3", len(turns))
	}
	if got := describe(turns[1].(map[string]any)); got != "markdown: echo: word" {
		t.Errorf("the agent's own turn contains %s; want echo: word", got)
	}
}

// TestUnaskedTurnIsCancelled cancels an unasked turn. The agent stops, and the host
// ignores what it sends later.
func TestUnaskedTurnIsCancelled(t *testing.T) {
	k := unasked(t, "slow", time.Hour)
	started := k.until("chat/turnStarted")
	k.until("chat/delta")
	k.cancel(started["turnId"].(string))
	if end := k.end(); end != "turnCancelled" {
		t.Errorf("the agent's own turn ends with %s; want turnCancelled", end)
	}
	k.works()
	if turns, _ := k.state(k.chat)["turns"].([]any); len(turns) != 3 {
		t.Errorf("%d turns; want 3", len(turns))
	}
}

// TestAgentDiesInAnUnaskedTurn lets an agent die in an unasked turn. The turn ends with
// the reason.
func TestAgentDiesInAnUnaskedTurn(t *testing.T) {
	k := unasked(t, "die", time.Hour)
	k.until("chat/turnStarted")
	if end := k.end(); end != "error" || !strings.Contains(k.last(), "exit status 3") {
		t.Errorf("the dead agent's own turn ends with %s: %s; want error, exit status 3", end, k.last())
	}
	k.works()
}

// TestWordsBetweenACancelAndItsEffect cancels an unasked turn while the agent's next words wait
// for the conversation's lock. These words must not begin a further turn.
func TestWordsBetweenACancelAndItsEffect(t *testing.T) {
	c, k := captured(t)
	k.prompt("hello")
	k.end()
	first := c.current(true)
	if first == nil {
		t.Fatal("the agent's words behind its turn begin no turn; want one")
	}
	started := k.until("chat/turnStarted")
	c.mu.Lock()
	k.cancel(started["turnId"].(string))
	k.end()
	c.mu.Unlock()
	if turn := c.current(true); turn != nil {
		t.Error("words after the cancelled turn begin a turn of their own; want none")
	}
}

// TestQuestionBehindATurn has the pause of an agent's own turn end while a question waits, and after its answer. The turn
// must end only after the answer.
func TestQuestionBehindATurn(t *testing.T) {
	c, k := captured(t)
	k.prompt("hello")
	k.end()
	turn := c.current(true)
	if turn == nil {
		t.Fatal("the agent's question begins no turn")
	}
	c.mu.Lock()
	c.heard = time.Time{} // long ago
	open := openLocked(c, turn, "", "", nil)
	open.requests = nil
	c.mu.Unlock()
	if c.endUnasked(turn); turn.Context().Err() != nil {
		t.Error("the turn ends while its question waits; want it to wait, too")
	}
	c.answered(open, nil)
	if c.endUnasked(turn); turn.Context().Err() == nil {
		t.Error("the turn goes on after the answer to its question; want its end after the pause")
	}
}

// TestLastWordsOfAnUnaskedTurn has the pause of an agent's own turn end at the moment in which more text arrives. The
// text must not be lost.
func TestLastWordsOfAnUnaskedTurn(t *testing.T) {
	c, k := captured(t)
	k.prompt("hello")
	k.end()
	c.isMine(c.id) // an update arrives
	turn := c.current(true)
	if turn == nil {
		t.Fatal("the agent's text begins no turn")
	}
	c.endUnasked(turn)
	turn.Text("", "last words")
	k.prompt("think")
	k.end()
	turns, _ := k.state(k.chat)["turns"].([]any)
	if got := describe(turns[1].(map[string]any)); got != "markdown: last words" {
		t.Errorf("the agent's own turn is %q; want last words", got)
	}
}
