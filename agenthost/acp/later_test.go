package acp

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/test/acpagent"
)

// laterTurns runs several turns with an agent that has these capabilities, and returns
// the turns' parts as a text.
func laterTurns(t *testing.T, with string) string {
	s := newSite(t, acpagent.Options{Store: t.TempDir(), With: with}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	var all []string
	for _, prompt := range []string{"hello", "think", "plan", "notice", "title New", "usage", "read " + filepath.Join(s.folder, "absent"), "run ls", "write note.txt words", "shell echo 1", "mode plan"} {
		turn := k.prompt(prompt)
		for {
			action := k.until("chat/toolCallReady", "chat/turnComplete", "chat/turnCancelled", "chat/error")
			if action["type"] != "chat/toolCallReady" {
				break
			}
			if action["options"] != nil {
				k.confirm(turn, action, true, "once")
			}
		}
		all = append(all, k.last())
	}
	state := k.state(k.session)
	all = append(all, fmt.Sprint(state["title"], state["config"]))
	return strings.ReplaceAll(strings.Join(all, "\n"), s.folder, "FOLDER")
}

// TestNewMembersChangeNothing uses an agent that adds unknown members to every object,
// as a later schema may. Its turns must have the same parts as without these members.
func TestNewMembersChangeNothing(t *testing.T) {
	want := laterTurns(t, "load resume options")
	if got := laterTurns(t, "load resume options later"); got != want {
		t.Errorf("with new members, the turns are\n%s\nwant\n%s", got, want)
	}
}

// TestNewValuesAreReadable uses an agent that sends unknown kinds of content, tools,
// states, answers and reasons. The turn must still show everything that the host knows.
func TestNewValuesAreReadable(t *testing.T) {
	bad, good := hostile(t, nil)
	turn := bad.prompt("later")
	ready := bad.asked()
	if got := fmt.Sprint(ready["options"]); strings.Contains(got, "Allow later") || !strings.Contains(got, "Yes, once") || !strings.Contains(got, "bypass permissions") {
		t.Errorf("the options are %s; want those of known kinds", got)
	}
	bad.confirm(turn, ready, true, "later")
	if end := bad.end(); end != "turnComplete" {
		t.Errorf("the turn with unknown values ends with %s; want turnComplete", end)
	}
	if got, want := bad.last(), "tool completed Later tool known\nmarkdown: once <nil>\nnotice: The agent stopped: \"tired\"."; got != want {
		t.Errorf("the turn is\n%s\nwant\n%s", got, want)
	}
	bad.works()
	good.works()
}
