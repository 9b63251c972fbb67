package agenthost_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/agenthost"
)

// gitFolder makes a git repository with a commit, and returns its path.
func gitFolder(t *testing.T) string {
	t.Helper()
	for name, value := range map[string]string{"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull, "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b"} {
		t.Setenv(name, value)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "shop")
	os.Mkdir(dir, 0o777)
	os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o666)
	runGit(t, dir, "init", "-q")
	runGit(t, dir, "add", "-A")
	runGit(t, dir, "commit", "-qm", "first")
	return dir
}

func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// newWriter is an agent that writes the files in a prompt: NAME=TEXT, with spaces
// between.
func newWriter() *fakeAgent {
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		return &fakeConversation{id: "c", prompt: func(_ context.Context, p agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
			for word := range strings.FieldsSeq(p.Text) {
				name, text, _ := strings.Cut(word, "=")
				if err := chat.WriteFile(name, text+"\n"); err != nil {
					return agenthost.End{}, err
				}
			}
			return agenthost.End{}, nil
		}}, nil
	}
	return agent
}

// wantFiles requests a changeset again and again until it has these files. It returns
// the files' entries.
func (c *agentClient) wantFiles(channel string, want ...string) []any {
	c.t.Helper()
	var got []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		result, failure := c.try("subscribe", `{"channel":"`+channel+`"}`)
		if failure != nil {
			continue // the host reads the turn's changes a little after the turn's end
		}
		state := result["snapshot"].(map[string]any)["state"].(map[string]any)
		got = nil
		files := state["files"].([]any)
		for _, f := range files {
			diff := f.(map[string]any)["edit"].(map[string]any)["diff"]
			got = append(got, fmt.Sprint(filepath.Base(f.(map[string]any)["id"].(string)), diff))
		}
		if state["status"] == "ready" && strings.Join(got, "|") == strings.Join(want, "|") {
			return files
		}
	}
	c.t.Fatalf("%s has the files %q; want %q", channel, got, want)
	return nil
}

func TestChangesInARepository(t *testing.T) {
	dir, storage := gitFolder(t), t.TempDir()
	agent := newWriter()
	c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: storage})
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake","workingDirectories":["file://`+dir+`"]}`)
	c.call("subscribe", `{"channel":"`+fakeSession+`"}`)
	c.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	os.WriteFile(filepath.Join(dir, "mine.txt"), []byte("the person's\n"), 0o666)
	c.prompt("t1", "a.txt=two new.txt=n")
	c.until("session/changesetsChanged")
	c.prompt("t2", "a.txt=three")
	c.until("chat/turnComplete")
	changed := fakeSession + "/changeset/session"
	files := c.wantFiles(changed, "a.txtmap[added:1 removed:1]", "new.txtmap[added:1 removed:0]")
	c.wantFiles(fakeSession+"/changeset/turn/t2", "a.txtmap[added:1 removed:1]")

	c.call("invokeChangesetOperation", fmt.Sprintf(`{"channel":%q,"operationId":"discard","target":{"resource":%q}}`, changed, files[1].(map[string]any)["id"]))
	c.wantFiles(changed, "a.txtmap[added:1 removed:1]")
	if _, err := os.Stat(filepath.Join(dir, "new.txt")); !os.IsNotExist(err) {
		t.Errorf("Stat of the discarded file = %v; want it removed", err)
	}
	// After a restart, the changeset has all changes since the session's beginning.
	d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, storage)})
	d.call("subscribe", `{"channel":"`+fakeSession+`"}`) // makes the host count the changes
	for sum := ""; sum != "map[additions:1 deletions:1 files:1]"; {
		items := d.call("listSessions", `{"channel":"ahp-root://"}`)["items"].([]any)
		sum = fmt.Sprint(items[0].(map[string]any)["changes"])
	}
	d.wantFiles(changed, "a.txtmap[added:1 removed:1]")

	branch := strings.TrimSpace(runGit(t, dir, "branch", "--show-current"))
	state := c.call("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(map[string]any)["state"].(map[string]any)
	if got := fmt.Sprint(state["_meta"]); got != "map[git:map[branchName:"+branch+"]]" {
		t.Errorf("the session's branch is %s; want %s", got, branch)
	}
	c.call("invokeChangesetOperation", `{"channel":"`+changed+`","operationId":"commit"}`)
	c.wantFiles(changed)
	if got := runGit(t, dir, "show", "--format=%s", "--name-only"); got != "a.txt=two new.txt=n\n\na.txt\n" {
		t.Errorf("the commit is %q; want the two files with the turn's message", got)
	}
	c.prompt("t3", "a.txt=four")
	c.wantFiles(changed, "a.txtmap[added:1 removed:1]")
	c.call("invokeChangesetOperation", `{"channel":"`+changed+`","operationId":"commit","_meta":{"agenthost.message":" Counts to four\n"}}`)
	c.wantFiles(changed)
	if got := runGit(t, dir, "log", "-1", "--format=%B"); strings.TrimSpace(got) != "Counts to four" {
		t.Errorf("the commit's message is %q; want Counts to four", got)
	}
	if got := runGit(t, dir, "status", "--porcelain"); got != "?? mine.txt\n" {
		t.Errorf("git's status is %q; want only mine.txt, which is not the agent's", got)
	}

	// The lists of sessions learn of a changed branch.
	runGit(t, dir, "checkout", "-q", "-b", "later")
	c.prompt("t4", "a.txt=five")
	for frame := ""; !strings.Contains(frame, `"root/sessionSummaryChanged"`) || !strings.Contains(frame, `"_meta":{"git":{"branchName":"later"}}`); {
		frame = c.recv()
	}
}

func TestSessionInAWorktree(t *testing.T) {
	dir := gitFolder(t)
	c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{newWriter()}, Storage: t.TempDir()})
	at := `"provider":"fake","workingDirectories":["file://` + dir + `"]`
	schema := fmt.Sprint(c.call("resolveSessionConfig", `{"channel":"ahp-root://",`+at+`,"config":{"isolation":"worktree","branch":"agent/one"}}`)["values"])
	if schema != "map[branch:agent/one isolation:worktree worktreeLocation:"+dir+".worktrees/agent-one]" {
		t.Errorf("the options are %s; want the worktree's location for the branch", schema)
	}
	for _, keep := range []bool{true, false} {
		branch := fmt.Sprint("keep-", keep)
		c.call("createSession", fmt.Sprintf(`{"channel":%q,%s,"config":{"isolation":"worktree","branch":%q}}`, fakeSession, at, branch))
		wt := dir + ".worktrees/" + branch
		c.call("subscribe", `{"channel":"`+fakeChat+`"}`)
		c.prompt("t1", "new.txt=work")
		c.until("chat/turnComplete")
		if text, err := os.ReadFile(filepath.Join(wt, "new.txt")); string(text) != "work\n" {
			t.Fatalf("the file in the worktree contains %q, %v; want work", text, err)
		}
		if !keep {
			runGit(t, wt, "add", "-A")
			runGit(t, wt, "commit", "-qm", "work")
		}
		c.call("disposeSession", `{"channel":"`+fakeSession+`"}`)
		if keep {
			continue
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if !strings.Contains(runGit(t, dir, "worktree", "list"), wt) || time.Now().After(deadline) {
				break // git removes the worktree's folder first, and then its own entry for it
			}
		}
	}
	if list := runGit(t, dir, "worktree", "list"); strings.Contains(list, "keep-false") || !strings.Contains(list, "keep-true") {
		t.Errorf("the worktrees are %s; want the one with uncommitted work", list)
	}
	if log := runGit(t, dir, "log", "--format=%s", "keep-false"); !strings.HasPrefix(log, "work\n") {
		t.Errorf("the branch has the commits %q; want work as the last", log)
	}
}

func TestWorktreeStaysInTheFolders(t *testing.T) {
	dir := gitFolder(t)
	c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{newWriter()}, Folders: []string{dir}})
	at := `"provider":"fake","workingDirectories":["file://` + dir + `"]`
	values := c.call("resolveSessionConfig", `{"channel":"ahp-root://",`+at+`,"config":{"isolation":"worktree","branch":"one"}}`)["values"].(map[string]any)
	if got := values["worktreeLocation"]; got != dir+"/.worktrees/one" {
		t.Errorf("the proposed worktree's folder is %v; want .worktrees/one in the repository", got)
	}
	os.Symlink(t.TempDir(), filepath.Join(dir, "out"))
	for _, location := range []string{dir + ".worktrees/one", dir + "/out/one", dir + "/../x"} {
		_, failure := c.try("createSession", fmt.Sprintf(`{"channel":%q,%s,"config":{"isolation":"worktree","branch":"one","worktreeLocation":%q}}`, fakeSession, at, location))
		if !strings.Contains(fmt.Sprint(failure), "outside of the folders") {
			t.Errorf("creating a session with a worktree in %s: %v; want outside of the folders", location, failure)
		}
	}
	c.call("createSession", fmt.Sprintf(`{"channel":%q,%s,"config":{"isolation":"worktree","branch":"one"}}`, fakeSession, at))
	if got := runGit(t, dir, "status", "--porcelain"); got != "?? out\n" {
		t.Errorf("git's status is %q; want only the folder out", got)
	}
}
