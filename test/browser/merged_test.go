//go:build !race

package browser_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/acpagent"
	"ahprelay/test/agents"
)

// git runs git in a folder, without the settings of this machine.
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

// repository makes a folder with a first commit.
func repository(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	git(t, folder, "init", "-q", "-b", "main")
	must(t, os.WriteFile(filepath.Join(folder, "README.md"), []byte("# Shop\n"), 0o600))
	git(t, folder, "config", "user.name", "Ada") // of this repository, for the host's own commits
	git(t, folder, "config", "user.email", "ada@example.com")
	git(t, folder, "add", ".")
	git(t, folder, "commit", "-qm", "First")
	return folder
}

// firstLinkToMerge is a new user's way on a phone: the link of a new relay, a host-agent
// with an agent, a session, and a change, which is allowed, read and committed.
func firstLinkToMerge(t *testing.T, name, folder, allow string, command, environment []string) {
	p, s := newPage(t), newSite(t)
	p.do(forms[2].size, colours("light"), chromedp.Navigate(s.firstRelay()))
	p.click("#form button")
	p.wants("#next", "host-agent up "+s.url)
	code, fingerprint := s.joinsWith(p, s.bench, slices.Concat([]string{"--agent", name, "--folder", folder, "--state-dir", s.file("state"), "--", "/usr/bin/env"}, environment, command)...)
	p.admits(code, fingerprint)
	p.wants("#sessions-note", "There are no sessions yet.")
	p.accessible("a new host without sessions")
	p.shot("merged-" + name + "-empty")

	p.click("#new-session")
	p.click("#create")
	p.until("a new session", 3*time.Minute, func() bool { // the agent starts
		return eval[bool](p, "!!document.querySelector('#chat-note')?.textContent.includes('No messages yet.')")
	})
	if mode := askingModes[name]; mode != "" {
		p.setting("mode", "o.dataset.value === "+js(mode))
	}
	p.allowAsked("write "+filepath.Join(folder, "note.txt")+" written-by-the-agent", allow)
	p.shot("merged-" + name + "-done")
	p.wants("[aria-label=Work] .chip .stat", "+1")
	p.click("[aria-label=Work] .chip")
	p.holds("the path in the folder", "document.querySelector('#beside .edit .path').textContent === 'note.txt'")
	p.wants("#beside .diff .added", "written-by-the-agent")
	p.wants("#beside .branch", "main")
	p.accessible("changes before the commit")
	p.shot("merged-" + name + "-changes")
	p.enter("#commit-message", "Note by the agent")
	p.press("#beside .changes > .row button", "Commit")
	p.wants("#beside", "Nothing has changed.")
	p.holds("no commit of nothing to be offered", "![...document.querySelectorAll('#beside .changes > .row button')].some((b) => b.textContent === 'Commit')")
	p.shot("merged-" + name + "-committed")
	if got := git(t, folder, "log", "--format=%s", "main"); got != "Note by the agent\nFirst" {
		t.Errorf("the branch has the commits %q", got)
	}
	if got := git(t, folder, "show", "--format=", "--name-only", "HEAD"); !slices.Contains(strings.Fields(got), "note.txt") {
		t.Errorf("the commit has the files %q", got)
	}
	if got := eval[string](p, overflows); got != "" {
		t.Errorf("on a phone:\n%s", got)
	}
}

// TestFirstLinkToMergedChange takes a new user from the link of a new relay to a commit.
func TestFirstLinkToMergedChange(t *testing.T) {
	t.Parallel()
	command, environment := acpagent.Command(acpagent.Options{Store: t.TempDir(), With: "load resume options"})
	firstLinkToMerge(t, "test", repository(t), "Yes, once", command, environment)
}

// TestFirstLinkToMergedChangeWithRealAgents is the same with the installed agents. make
// agents runs it.
func TestFirstLinkToMergedChangeWithRealAgents(t *testing.T) {
	agents.Dir(t)
	for _, name := range agents.Names {
		t.Run(name, func(t *testing.T) {
			folder := repository(t)
			real := agents.Prepare(t, name, t.TempDir(), folder, agents.StartModel(t))
			git(t, folder, "add", ".")
			if git(t, folder, "status", "--porcelain") != "" { // its settings
				git(t, folder, "commit", "-q", "--amend", "-m", "First")
			}
			firstLinkToMerge(t, name, folder, allowLabels[name], real.Command, real.Environment)
		})
	}
}
