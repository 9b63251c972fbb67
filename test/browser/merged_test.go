//go:build !race

package browser_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ahprelay/test/acpagent"
	"ahprelay/test/agents"
)

// git runs git in a folder without this machine's settings, and returns its output.
func git(t *testing.T, folder string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", slices.Concat([]string{"-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"}, args)...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes a git repository with a first commit.
func repository(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	git(t, folder, "init", "-q", "-b", "main")
	must(t, os.WriteFile(filepath.Join(folder, "README.md"), []byte("# Shop\n"), 0o600))
	git(t, folder, "config", "user.name", "Ada") // the host's own commits need a name
	git(t, folder, "config", "user.email", "ada@example.com")
	git(t, folder, "add", ".")
	git(t, folder, "commit", "-qm", "First")
	return folder
}

// firstLink follows a new user's steps on a phone: it opens the link of a new relay and
// admits a host-agent that runs with these flags.
func firstLink(t *testing.T, flags ...string) (*page, *site) {
	p, s := newPage(t), newSite(t)
	p.do(forms[2].size, colours("light"), chromedp.Navigate(s.firstRelay()))
	p.click("#form button")
	p.wants("#next", "host-agent up "+s.url)
	code, fingerprint := s.joinsWith(p, s.bench, flags...)
	p.admits(code, fingerprint)
	return p, s
}

// firstLinkToMerge follows a new user's steps on a phone from a new relay's link to a
// commit. It pairs a host-agent with an agent and begins a session. The agent changes a
// file: the user allows the change, reads it and commits it. fails runs before the
// commit, and may be nil.
func firstLinkToMerge(t *testing.T, name, folder, allow string, command, environment []string, fails func(*page)) {
	p, _ := firstLink(t, slices.Concat([]string{"--agent", name, "--folder", folder, "--state-dir", t.TempDir(), "--", "/usr/bin/env"}, environment, command)...)
	p.wants("#sessions-note", "There are no sessions yet.")
	p.accessible("a new host without sessions")
	p.shot("merged-" + name + "-empty")

	p.beginsWithAgent()
	if mode := askingModes[name]; mode != "" {
		p.setting("mode", "o.dataset.value === "+js(mode))
	}
	p.allowAsked("write "+filepath.Join(folder, "note.txt")+" written-by-the-agent", allow)
	p.shot("merged-" + name + "-done")
	p.holds("the lines of the change", `document.querySelector("[aria-label=Work] .chip .stat")?.textContent === "+1"`)
	p.click("[aria-label=Work] .chip")
	p.holds("the path in the folder", "document.querySelector('#beside .edit .path').textContent === 'note.txt'")
	p.wants("#beside .diff .added", "written-by-the-agent")
	p.wants("#beside .branch", "main")
	p.accessible("changes before the commit")
	p.shot("merged-" + name + "-changes")
	if fails != nil {
		fails(p)
	}
	p.enter("#commit-message", "Note by the agent")
	p.press("#beside .changes > .row button", "Commit")
	p.wants("#beside", "0 files")
	p.holds("no commit of nothing to be offered", "![...document.querySelectorAll('#beside .changes > .row button')].some((b) => b.textContent === 'Commit')")
	p.shot("merged-" + name + "-committed")
	if got := git(t, folder, "log", "--format=%s", "main"); got != "Note by the agent\nFirst" {
		t.Errorf("the branch has the commits %q; want Note by the agent, First", got)
	}
	if got := git(t, folder, "show", "--format=", "--name-only", "HEAD"); !slices.Contains(strings.Fields(got), "note.txt") {
		t.Errorf("the commit has the files %q; want note.txt", got)
	}
	if got := eval[string](p, overflows); got != "" {
		t.Errorf("on a phone, these elements do not fit:\n%s", got)
	}
}

// TestFirstLinkToMergedChange runs firstLinkToMerge with the test's agent.
func TestFirstLinkToMergedChange(t *testing.T) {
	t.Parallel()
	command, environment := acpagent.Command(acpagent.Options{Store: t.TempDir(), With: "load resume options stays"})
	folder := repository(t)
	firstLinkToMerge(t, "test", folder, "Yes, once", command, environment, func(p *page) {
		p.discardFails(filepath.Join(folder, "note.txt"))
		p.modelStays()
	})
}

// discardFails discards an agent's file that a person has changed in the meantime. The
// page shows the host's reason, once.
func (p *page) discardFails(file string) {
	p.t.Helper()
	written, err := os.ReadFile(file)
	must(p.t, err)
	must(p.t, os.WriteFile(file, []byte("by hand"), 0o600))
	p.press("#beside .edit button", "Discard")
	p.wants("dialog[open]", "This gives the file the content that it had before.")
	p.click("#confirm-yes")
	p.wants("#beside .error", "note.txt has changed since. Nothing was discarded.")
	if got := strings.Count(p.text("#beside"), "Nothing was discarded."); got != 1 {
		p.t.Errorf("the reason is shown %d times; want once", got)
	}
	if got, err := os.ReadFile(file); string(got) != "by hand" {
		p.t.Errorf("after a failed Discard, the file contains %q, %v; want the text by hand", got, err)
	}
	p.accessible("a failed Discard")
	p.shot("discard-failed")
	must(p.t, os.WriteFile(file, written, 0o600))
}

// modelStays chooses a model that the agent refuses. The page shows the former model, and
// that the choice was taken back.
func (p *page) modelStays() {
	p.t.Helper()
	p.click("#beside-hide")
	p.press(".chat-head details button", "Model and settings")
	p.holds("the present model", "document.querySelector('#new-model')?.dataset.value === 'small'")
	p.click("#new-model")
	p.click("#new-model-list [data-value=large]")
	p.wants("#settings .error", "Model is Small again, because Large was not accepted.")
	p.holds("the former model", "document.querySelector('#new-model').dataset.value === 'small'")
	p.accessible("a refused model")
	p.shot("model-refused")
	p.do(chromedp.KeyEvent(kb.Escape))
	p.click("[aria-label=Work] .chip")
	p.wants("#beside .diff .added", "written-by-the-agent")
}

// TestNewSessionIsOfTheFormAsItStands changes the folder in the form for a new session,
// and begins the session at once. The session's worktree must belong to the new folder.
// The agent gets the form's defaults.
func TestNewSessionIsOfTheFormAsItStands(t *testing.T) {
	t.Parallel()
	command, environment := acpagent.Command(acpagent.Options{Store: t.TempDir(), With: "load resume options"})
	former, folder := repository(t), repository(t)
	s := &agentSite{site: startRelayFor(t, stackConfig{}), name: "test"}
	s.startAgentWith(hostName, slices.Concat([]string{"--agent", "test", "--folder", former, "--folder", folder, "--state-dir", s.file("state"), "--", "/usr/bin/env"}, environment, command)...)
	p := newPage(t)
	s.opens(p)
	p.click("#new-session")
	p.enter("#new-folder", former)
	p.click("#new-isolation")
	p.click("#new-isolation-list [data-value=worktree]")
	p.holds("the former folder's worktree", "document.querySelector('#new-worktreeLocation')?.value.startsWith("+js(former)+")")
	eval[any](p, `(async (e) => {
		Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(e, `+js(folder)+`);
		e.dispatchEvent(new InputEvent('input', {bubbles: true}));
		while (document.querySelector('#new-folder').value !== `+js(folder)+`) await new Promise(requestAnimationFrame);
		await new Promise((drawn) => setTimeout(drawn));
		document.querySelector('#create').click();
	})(document.querySelector('#new-folder'))`)
	p.wants("#chat-note", "No messages yet.")
	if got := git(t, former, "worktree", "list"); strings.Count(got, "\n") != 0 {
		t.Errorf("the earlier folder has the worktrees\n%s\nwant only its own", got)
	}
	if got := git(t, folder, "worktree", "list"); !strings.Contains(got, folder+"/.worktrees/agent-") {
		t.Errorf("the chosen folder has the worktrees\n%s\nwant one for the agent", got)
	}
}

// TestFirstLinkToMergedChangeWithRealAgents runs firstLinkToMerge with each installed
// agent. make agents runs it.
func TestFirstLinkToMergedChangeWithRealAgents(t *testing.T) {
	agents.Dir(t)
	for _, name := range agents.Names {
		t.Run(name, func(t *testing.T) {
			folder := repository(t)
			real := agents.Prepare(t, name, t.TempDir(), folder, agents.StartModel(t))
			git(t, folder, "add", ".")
			if git(t, folder, "status", "--porcelain") != "" { // the agent's settings are in the folder
				git(t, folder, "commit", "-q", "--amend", "-m", "First")
			}
			firstLinkToMerge(t, name, folder, allowLabels[name], real.Command, real.Environment, nil)
		})
	}
}

// TestFirstLinkToMergedChangeAtVSCode follows a new user's steps to a merged change at
// VS Code's host. It uses a folder that is a worktree, the host's own command for a
// change, and its review. A commit in the page needs a sign-in, so the user commits in
// a terminal by the keys of a phone. Then the host merges. make interop runs it.
func TestFirstLinkToMergedChangeAtVSCode(t *testing.T) {
	upstream := os.Getenv(upstreamVariable)
	if upstream == "" {
		t.Skipf("%s names no host (make interop)", upstreamVariable)
	}
	main := repository(t)
	folder := filepath.Join(t.TempDir(), "note")
	git(t, main, "worktree", "add", "-q", "-b", "note", folder)
	p, _ := firstLink(t, "--upstream", upstream)

	p.click("#new-session")
	p.await("#new-folder")
	if p.count("#new-agent") == 0 {
		t.Skip("the host has no agent with a script")
	}
	p.click("#new-agent")
	p.press("#new-agent-list [role=option]", "Mock Agent")
	p.enter("#new-folder", folder)
	p.holds("the folder's branch", "document.querySelector('#new-branch')?.value === 'note'")
	p.enter("#new-branch", "main") // the branch into which the host merges
	p.accessible("the form of VS Code's host")
	p.shot("merged-vscode-form")
	p.click("#create")
	p.wants("#chat-note", "No messages yet.")
	p.say("hello")
	p.wants(lastTurn+" .parts", saidHello)
	p.say("!pwd && echo written-on-a-phone > note.txt")
	p.wants(lastTurn+" .parts", folder)
	p.shot("merged-vscode-done")

	work := func(chip string) { p.press("[aria-label=Work] .chip > span:first-of-type", chip) }
	work("Branch Changes")
	p.wants("#beside .branch", "note → main")
	p.wants("#beside .diff .added", "written-on-a-phone")
	p.click("#beside .check input")
	p.wants("#beside", "1 file, 1 looked at")
	p.accessible("changes at VS Code's host")
	p.shot("merged-vscode-changes")
	p.click("#beside-hide")

	work("Uncommitted Changes")
	p.press("#beside .changes > .row button", "Commit")
	p.wants("#beside .error", "Commit: Sign in to GitHub Copilot")
	p.shot("merged-vscode-refused")
	p.click("#beside-hide")

	p.click(".chat-head .menu summary")
	p.press(".chat-head .menu button", "New terminal")
	f := p.newFrame("/terminal.html", "document.body.dataset.printed > 0")
	for i, words := range []string{"git add ", "A && git commit ", "qm 'Note on a phone'"} {
		if i > 0 {
			p.press("#beside .keys button", "-")
		}
		f.focus("textarea")
		f.do(characters(words))
		f.holds(words, "document.querySelector('.xterm-rows').textContent.replace(/\\s/g, '').endsWith("+js(strings.ReplaceAll(words, " ", ""))+")")
	}
	p.press("#beside .keys button", "⏎")
	p.until("the commit", patience, func() bool { return git(t, folder, "log", "-1", "--format=%s") == "Note on a phone" })
	p.shot("merged-vscode-terminal")
	p.click("#beside-hide")

	work("Branch Changes")
	p.press("#beside .changes > .row button", "Merge Changes")
	p.accessible("the question before a merge")
	p.press("dialog[open] button", "Merge Changes")
	p.until("the merge", patience, func() bool { return strings.Contains(git(t, main, "log", "--format=%s", "main"), "Note on a phone") })
	p.wants("#beside", "0 files")
	p.shot("merged-vscode-merged")
	if got, err := os.ReadFile(filepath.Join(main, "note.txt")); err != nil || string(got) != "written-on-a-phone\n" {
		t.Errorf("the merged file contains %q, %v; want written-on-a-phone", got, err)
	}
	if got := eval[string](p, overflows); got != "" {
		t.Errorf("on a phone, these elements do not fit:\n%s", got)
	}
}
