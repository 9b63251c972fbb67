//go:build !race

package browser_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ahprelay/auth"
	"ahprelay/test/acpagent"
	"ahprelay/test/agents"
	"ahprelay/test/procs"
)

// An agentSite is a site with a host-agent that runs a coding agent in a folder.
type agentSite struct {
	*site
	name   string // name of the agent
	folder string
	output string // expected output of the command in works
	flags  []string
	again  func() // starts the host-agent again
}

// startAgentSite starts a relay and a host-agent that runs command in the folder. The
// command gets the additional environment.
func startAgentSite(t *testing.T, name, folder string, command, environment []string) *agentSite {
	t.Helper()
	s := &agentSite{site: startRelayFor(t, stackConfig{}), name: name, folder: folder}
	s.flags = slices.Concat([]string{"--agent", name, "--folder", folder, "--state-dir", s.file("state"), "--", "/usr/bin/env"}, environment, command)
	s.again = func() { s.startAgentWith(hostName, s.flags...) }
	s.again()
	return s
}

// opens opens the console on a phone.
func (s *agentSite) opens(p *page) {
	p.t.Helper()
	p.do(phone(), colours("light"), chromedp.Navigate(s.console(s.token(time.Hour))))
}

// works drives an agent on a phone's console. It sends a prompt, allows a command and a
// change of a file, reads the output and the diff, cancels a turn, changes the model,
// and sends a prompt after the host-agent has restarted.
func (s *agentSite) works(p *page, long, stop, allow string) {
	p.t.Helper()
	p.beginsWithAgent()
	p.say("hello there friend")
	p.wants("#turns", "hello there friend")

	if mode := askingModes[s.name]; mode != "" {
		p.setting("mode", "o.dataset.value === "+js(mode))
	}
	p.allowAsked("run printf from-%s-shell 42 | tee shell.txt", allow)
	p.wants(lastTurn, s.output)
	p.shot("agent-" + s.name + "-shell")
	p.allowAsked("write "+filepath.Join(s.folder, "note.txt")+" written-by-the-agent", allow)
	if text, err := os.ReadFile(filepath.Join(s.folder, "note.txt")); err != nil || string(text) != "written-by-the-agent\n" {
		p.t.Errorf("the file has %q, %v; want written-by-the-agent", text, err)
	}
	s.seesDiff(p)

	p.say(long)
	p.wants(lastTurn, stop)
	p.click("#stop")
	p.holds("the turn to end", "document.querySelector('#stop') === null")

	p.setting("model", "o.dataset.value.includes('other')") // OpenCode's second model

	s.end(s.agent)
	s.again()
	p.wants("#turns", "hello there friend")
	p.say("are you there")
	p.until("an answer after the restart", 3*time.Minute, func() bool {
		return eval[bool](p, "(t => t.includes('echo: are you there'))(document.querySelector("+js(lastTurn)+")?.textContent ?? '')")
	})
}

// seesDiff opens the last tool's details until the page shows the new line of the
// changed file.
func (s *agentSite) seesDiff(p *page) {
	p.t.Helper()
	tool := "document.querySelector(" + js(lastTurn+" .tool") + ")"
	p.holds("the changed line", "(t => { t.querySelectorAll('details:not([open]) > summary').forEach((e) => e.click()); return t.textContent.includes('written-by-the-agent'); })("+tool+")")
	p.shot("agent-" + s.name + "-diff")
}

// beginsWithAgent creates a session with the page's defaults and waits until its agent
// has started. The host waits for two of the agent's answers, each for up to two
// minutes. If the form reports a failure, the test fails.
func (p *page) beginsWithAgent() {
	p.t.Helper()
	p.click("#new-session")
	p.click("#create")
	p.until("a new session", 5*time.Minute, func() bool {
		if note := p.text("#new-note"); note != "" {
			p.t.Fatal(note)
		}
		return strings.Contains(p.text("#chat-note"), "No messages yet.")
	})
}

// setting chooses a value of an agent's option on the page: the first choice o for which
// the script fits is true, or else the first choice that is not selected. It waits until
// the page shows the value, which the agent has confirmed.
func (p *page) setting(id, fits string) {
	p.t.Helper()
	p.press(".chat-head details button", "Model and settings")
	control := "document.querySelector('#settings #new-" + id + "')"
	p.holds("the option "+id, control+" !== null")
	p.click("#new-" + id)
	p.holds("a choice", "(list => { const o = list.find((o) => "+fits+") ?? list.find((o) => o.ariaSelected !== 'true'); window.chosen = o?.dataset.value; o?.click(); return o; })([...document.querySelectorAll('#new-"+id+"-list [role=option]')])")
	p.holds("the choice of "+id, control+".dataset.value === window.chosen")
	p.shot("agent-setting-" + id)
	p.do(chromedp.KeyEvent(kb.Escape))
	p.holds("the dialog to close", "document.querySelector('#settings') === null")
}

// allowAsked sends a prompt. It allows every request of the agent once, until the turn
// is done.
func (p *page) allowAsked(prompt, label string) {
	p.t.Helper()
	p.say(prompt)
	turn := "(document.querySelector(" + js(lastTurn) + ")?.textContent ?? '')"
	done := "(t => t.includes(" + js(prompt) + ") && t.includes('done:'))" + turn
	asks := "document.querySelector(" + js(allows) + ") !== null"
	for {
		p.until("a request, or the answer", 3*time.Minute, func() bool { return eval[bool](p, asks+"||"+done) })
		if !eval[bool](p, asks) {
			return
		}
		if label != "" {
			p.wants(allows, label)
		}
		p.click(allows)
		p.holds("the answer to be taken", "!("+asks+")")
	}
}

// TestAgentOnAPhone drives the test's agent for the Agent Client Protocol, on a phone
// and by its notifications.
func TestAgentOnAPhone(t *testing.T) {
	t.Parallel()
	command, environment := acpagent.Command(acpagent.Options{Store: t.TempDir(), With: "load resume options"})
	s := startAgentSite(t, "test", t.TempDir(), command, environment)
	s.output = "ran printf"
	p := newPage(t)
	s.opens(p)
	s.works(p, "slow", "3 ", "Yes, once")
}

// TestSessionThatSkipsPermissionsIsMarked lets an agent change to a mode in which it
// asks for no permission. The page marks the session, and the session's settings
// explain the mode. The mark goes when the agent asks again.
func TestSessionThatSkipsPermissionsIsMarked(t *testing.T) {
	t.Parallel()
	command, environment := acpagent.Command(acpagent.Options{With: "switch"})
	s := startAgentSite(t, "test", t.TempDir(), command, environment)
	p := newPage(t)
	s.opens(p)
	p.click("#new-session")
	p.click("#create")
	p.holds("a new session", "!!document.querySelector('#chat-note')?.textContent.includes('No messages yet.')")
	if p.count("#skips") != 0 {
		t.Error("a session whose agent asks for permission is marked; want no mark")
	}
	p.say("mode bypassPermissions")
	p.wants("#skips", "The agent asks for no permission")
	p.accessible("a session without permissions")
	p.shot("skips")
	p.click("#skips") // opens the settings
	p.wants("#settings", "In this mode the agent asks for no permission.")
	p.wants("#settings .check", "Allow all ⚠ asks for nothing")
	p.shot("skips-settings")
	p.do(chromedp.KeyEvent(kb.Escape))
	p.say("mode ask")
	p.holds("no mark", "document.querySelector('#skips') === null")
}

// TestLockScreenAnswersAnAgent allows an agent's command by a button of a notification.
// The buttons have the agent's own options.
func TestLockScreenAnswersAnAgent(t *testing.T) {
	t.Parallel()
	command, environment := acpagent.Command(acpagent.Options{})
	s := startAgentSite(t, "test", t.TempDir(), command, environment)
	s.answeredFromTheLockScreen()
}

// answeredFromTheLockScreen starts a session whose agent asks to run a command, and
// allows it by a button of the notification.
func (s *agentSite) answeredFromTheLockScreen() {
	t := s.t
	t.Helper()
	l := startLockScreen(t, s.site)
	l.do(phone(), colours("light"))
	l.beginsWithAgent()
	if mode := askingModes[s.name]; mode != "" {
		l.setting("mode", "o.dataset.value === "+js(mode))
	}
	const command = "printf from-%s-notice 43 | tee notice.txt"
	l.say("run " + command)
	asked := l.ring("approval")
	if text := asked.Text + "\n" + asked.Detail; !strings.Contains(text, command) {
		t.Errorf("the notification asks for %q; want it to contain %s", text, command)
	}
	l.press("0", "")
	l.wants(lastTurn+" .parts", "done:")
	l.wants(lastTurn+" .given", "Allowed by owner · Chrome on Linux")
	l.shot("agent-" + s.name + "-answered")
}

// askingModes names, for each agent that needs it, the mode in which the agent asks for
// permission. In its default mode, a model decides instead.
var askingModes = map[string]string{"claude": "default", "codex": "read-only"}

// allowLabels names each agent's label for allowing a request.
var allowLabels = map[string]string{"opencode": "Allow once", "gemini": "Allow", "claude": "Yes", "codex": "Yes, proceed"}

// TestRealAgentsOnAPhone drives installed agents. It follows a new user's steps: relay
// serve, its link, host-agent up, and its code. make agents runs it.
func TestRealAgentsOnAPhone(t *testing.T) {
	agents.Dir(t)
	for _, name := range agents.Names {
		t.Run(name, func(t *testing.T) {
			folder, home := t.TempDir(), t.TempDir()
			real := agents.Prepare(t, name, home, folder, agents.StartModel(t))
			s, p := walkTo(t, name, folder, real.Environment)
			s.output = "from-42-shell"
			s.answeredFromTheLockScreen() // before the change of the model: Codex gives its own models no tool that the script knows
			s.works(p, "please repeat "+strings.Repeat("many words ", 40), "many words", allowLabels[name])
		})
	}
}

// walkTo starts a relay with further flags. It then runs host-agent up with an agent
// from PATH, and admits it by its code. The returned page is the first device's
// console.
func walkTo(t *testing.T, name, folder string, environment []string, relay ...string) (*agentSite, *page) {
	t.Helper()
	p := newPage(t)
	s := &agentSite{site: newSite(t), name: name, folder: folder}
	p.do(phone(), colours("light"), chromedp.Navigate(s.firstRelay(append(relay, "--notify-private", "127.0.0.1/32")...))) // permits the test's push service
	p.click("#form button")
	p.wants("#who", "owner. You may do everything")
	s.bench.Env = append(s.bench.Env, environment...)
	s.flags = []string{"--agent", name, "--folder", folder}
	code, fingerprint := s.joinsWith(p, s.bench, s.flags...)
	p.admits(code, fingerprint)
	p.hostIs(hostName, "online")
	keys, err := auth.LoadKeys(s.file("data"))
	must(t, err)
	s.keys = keys
	s.again = func() {
		agent := s.bench.Process("", "host-agent-again", procs.AgentProgram, s.upFlags(s.flags...)...)
		s.agent = agent
		must(t, agent.Launch(t.Context(), func() error { return nil }))
		t.Cleanup(func() { s.end(agent) })
		p.hostIs(hostName, "online")
	}
	return s, p
}

// TestRealAgentWhileItsMachineSleeps stops the host-agent's process, as a sleeping
// machine would. The phone reads the agent's last answer, leaves a message, and wakes
// the machine by the operator's command. The agent answers the message, and the phone
// gets the notification. make agents runs it.
func TestRealAgentWhileItsMachineSleeps(t *testing.T) {
	agents.Dir(t)
	const name = "opencode"
	folder, home := t.TempDir(), t.TempDir()
	script := filepath.Join(home, "wake")
	real := agents.Prepare(t, name, home, folder, agents.StartModel(t))
	s, first := walkTo(t, name, folder, real.Environment, "--wake-command", "default/"+hostName+"=sh "+script)
	first.do(chromedp.Navigate("about:blank"))
	l := startLockScreen(t, s.site)
	l.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile), colours("light"))
	l.beginsWithAgent()
	session := eval[string](l.page, "new URLSearchParams(location.hash.slice(1)).get('session')")
	l.say("hello there friend")
	l.until("the answer", 3*time.Minute, func() bool {
		return eval[bool](l.page, "!!document.querySelector("+js(lastTurn+" .parts")+")?.textContent.includes('echo: hello there friend')")
	})
	l.next("done")
	kept := l.isRemembered(s.site, session, 0)
	l.until("the keys of this device", patience, func() bool { return l.devices() >= 1 })

	pid := s.agent.Pid()
	must(t, os.WriteFile(script, fmt.Appendf(nil, "kill -CONT %d\n", pid), 0o600))
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	asleep := true
	t.Cleanup(func() {
		if asleep {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	l.next("offline")
	l.do(chromedp.Reload())
	l.wants("#past", "As of")
	l.wants("#turns", "echo: hello there friend")
	l.shot("agent-asleep")
	l.leaves("are you there")
	l.wants(".log .left .state", "left at the relay")
	l.shot("agent-left")
	l.click("#past .wake")
	l.until("the machine to wake", 2*time.Minute, func() bool {
		return strings.Contains(l.text("#past"), "Woken by the relay") || l.text("#status-text") == "Live"
	})
	asleep = false
	l.until("the answer to the message", 3*time.Minute, func() bool {
		return eval[bool](l.page, "!!document.querySelector("+js(lastTurn+" .parts")+")?.textContent.includes('echo: are you there')")
	})
	l.wants(".log .left .state", "The host has it.")
	if said := l.next("done"); said.Session != session {
		t.Errorf("the notification is about %q; want %q", said.Session, session)
	}
	l.shot("agent-woken")
	if l.isRemembered(s.site, session, kept) <= kept {
		t.Error("the relay has no state of the session from after the machine's wake; want one")
	}
}
