//go:build !race

package browser_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/acpagent"
	"ahprelay/test/agents"
)

// An agentSite is a site whose host-agent runs a coding agent in a folder.
type agentSite struct {
	*site
	folder string
	flags  []string
}

// startAgentSite starts relay and host-agent. The agent's command has its environment
// before it.
func startAgentSite(t *testing.T, name, folder string, command, environment []string) *agentSite {
	t.Helper()
	s := &agentSite{site: startRelayFor(t, stackConfig{}), folder: folder}
	s.flags = slices.Concat([]string{"--agent", name, "--folder", folder, "--state-dir", s.file("state"), "--", "/usr/bin/env"}, environment, command)
	s.startAgentWith(hostName, s.flags...)
	return s
}

// works drives an agent on a phone-sized page: a prompt, a command and a change of a
// file with permissions, a cancelled turn, and a prompt after a restart of the
// host-agent.
func (s *agentSite) works(p *page, long, stop, allow string) {
	p.t.Helper()
	p.do(phone(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
	p.click("#new-session")
	p.click("#create")
	p.until("a new session", 3*time.Minute, func() bool { // the agent starts
		return eval[bool](p, "!!document.querySelector('#chat-note')?.textContent.includes('No messages yet.')")
	})
	p.say("hello there friend")
	p.wants("#turns", "hello there friend")

	p.say("run printf from-%s-shell 42 | tee shell.txt")
	p.allowAsked(allow)
	p.wants(lastTurn, "done:")

	p.say("write " + filepath.Join(s.folder, "note.txt") + " written-by-the-agent")
	p.allowAsked(allow)
	p.wants(lastTurn, "done:")
	if text, err := os.ReadFile(filepath.Join(s.folder, "note.txt")); err != nil || string(text) != "written-by-the-agent\n" {
		p.t.Errorf("the file has %q, %v", text, err)
	}

	p.say(long)
	p.wants(lastTurn, stop)
	p.click("#stop")
	p.holds("the turn to end", "document.querySelector('#stop') === null")

	s.end(s.agent)
	s.startAgentWith(hostName, s.flags...)
	p.wants("#turns", "hello there friend")
	p.say("are you there")
	p.until("an answer after the restart", 3*time.Minute, func() bool {
		return eval[bool](p, "(t => t.includes('echo: are you there'))(document.querySelector("+js(lastTurn)+")?.textContent ?? '')")
	})
}

// allowAsked allows a request once, if the agent asks before its turn ends.
func (p *page) allowAsked(label string) {
	p.t.Helper()
	button := allows
	p.until("a request, or the answer", 3*time.Minute, func() bool {
		return eval[bool](p, "document.querySelector("+js(button)+") !== null || !!document.querySelector("+js(lastTurn)+")?.textContent.includes('done:')")
	})
	for eval[bool](p, "document.querySelector("+js(button)+") !== null") {
		if label != "" {
			p.wants(button, label)
		}
		p.click(button)
		p.holds("the answer to be taken", "document.querySelector("+js(button)+") === null")
	}
}

// TestAgentOnAPhone drives an agent that speaks the Agent Client Protocol.
func TestAgentOnAPhone(t *testing.T) {
	t.Parallel()
	command, environment := acpagent.Command(acpagent.Options{Store: t.TempDir(), With: "load resume options"})
	s := startAgentSite(t, "test", t.TempDir(), command, environment)
	s.works(newPage(t), "slow", "3 ", "Yes, once")
}

// TestRealAgentsOnAPhone drives agents that are installed. make agents runs it.
func TestRealAgentsOnAPhone(t *testing.T) {
	agents.Dir(t)
	for _, name := range agents.Names {
		t.Run(name, func(t *testing.T) {
			folder, home := t.TempDir(), t.TempDir()
			real := agents.Prepare(t, name, home, folder, agents.StartModel(t))
			s := startAgentSite(t, name, folder, real.Command, real.Environment)
			s.works(newPage(t), "please repeat "+string(slices.Repeat([]byte("many words "), 40)), "many words", "")
		})
	}
}
