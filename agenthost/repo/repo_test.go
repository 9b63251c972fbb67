package repo_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/agenthost/repo"
)

// newRepo makes a git repository with a commit, and returns it with its directory.
func newRepo(t *testing.T) (*repo.Repo, string) {
	t.Helper()
	dir := t.TempDir()
	for name, value := range map[string]string{"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull, "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b"} {
		t.Setenv(name, value)
	}
	git(t, dir, "init", "-q")
	write(t, dir, "kept.txt", "one\ntwo\n")
	write(t, dir, "gone.txt", "x\n")
	write(t, dir, ".gitignore", "*.log\n")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-qm", "first")
	r, err := repo.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return r, r.Top()
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
	return string(out)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func snapshot(t *testing.T, r *repo.Repo) string {
	t.Helper()
	tree, err := r.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestChangesBetweenSnapshots(t *testing.T) {
	r, dir := newRepo(t)
	write(t, dir, "dirty.txt", "before the turn\n")
	git(t, dir, "add", "dirty.txt")
	staged := git(t, dir, "status", "--porcelain")
	before := snapshot(t, r)
	if got := git(t, dir, "status", "--porcelain"); got != staged {
		t.Errorf("after a snapshot, git's status is %q; want %q, as before", got, staged)
	}
	write(t, dir, "kept.txt", "one\n2\n3\n")
	write(t, dir, "a dir/ näw\t*.txt", "new\n")
	write(t, dir, "debug.log", "ignored\n")
	os.Remove(filepath.Join(dir, "gone.txt"))
	changes, err := r.Changes(context.Background(), before, snapshot(t, r))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		name, _ := filepath.Rel(dir, c.Path)
		got = append(got, fmt.Sprintf("%s %v %v +%d -%d", name, c.Before != "", c.After != "", c.Added, c.Removed))
	}
	want := "a dir/ näw\t*.txt false true +1 -0\ngone.txt true false +0 -1\nkept.txt true true +2 -1"
	if strings.Join(got, "\n") != want {
		t.Errorf("the changes are\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	for _, c := range changes {
		if err := r.Discard(context.Background(), c, before); err != nil {
			t.Error(err)
		}
	}
	if after := snapshot(t, r); after != before {
		t.Errorf("after the discard of all changes, the files differ from before: %s", git(t, dir, "diff", "--stat", before, after))
	}
}

func TestDiscardKeepsLaterWork(t *testing.T) {
	r, dir := newRepo(t)
	before := snapshot(t, r)
	write(t, dir, "kept.txt", "agent\n")
	write(t, dir, "new.txt", "agent\n")
	changes, err := r.Changes(context.Background(), before, snapshot(t, r))
	if err != nil || len(changes) != 2 {
		t.Fatal(changes, err)
	}
	write(t, dir, "kept.txt", "person\n")
	write(t, dir, "new.txt", "person\n")
	for _, c := range changes {
		if err := r.Discard(context.Background(), c, before); !errors.Is(err, repo.ErrChanged) {
			t.Errorf("Discard(%s) = %v; want %v", c.Path, err, repo.ErrChanged)
		}
		if text, err := os.ReadFile(c.Path); string(text) != "person\n" {
			t.Errorf("the file %s has %q, %v; want the person's later text", c.Path, text, err)
		}
	}
}

func TestCommitTakesOnlyItsFiles(t *testing.T) {
	r, dir := newRepo(t)
	before := snapshot(t, r)
	write(t, dir, "new.txt", "agent\n")
	os.Remove(filepath.Join(dir, "gone.txt"))
	changes, err := r.Changes(context.Background(), before, snapshot(t, r))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "kept.txt", "the person's\n")
	git(t, dir, "add", "kept.txt")
	if err := r.Commit(context.Background(), changes, "Agent's work"); err != nil {
		t.Fatal(err)
	}
	if got := git(t, dir, "show", "--format=%s", "--name-status"); got != "Agent's work\n\nD\tgone.txt\nA\tnew.txt\n" {
		t.Errorf("the commit is %q; want gone.txt removed and new.txt added", got)
	}
	if got := git(t, dir, "status", "--porcelain"); got != "M  kept.txt\n" {
		t.Errorf("after the commit, git's status is %q; want only kept.txt changed", got)
	}
}

func TestWorktreeKeepsUncommittedWork(t *testing.T) {
	r, _ := newRepo(t)
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "wt")
	for _, bad := range []string{"-f", "a..b", ""} {
		if err := r.AddWorktree(ctx, bad, dir); err == nil {
			t.Errorf("AddWorktree accepts the branch %q; want an error", bad)
		}
	}
	if err := r.AddWorktree(ctx, "agent/one", dir); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "new.txt", "work\n")
	if err := r.RemoveWorktree(ctx, dir); err == nil {
		t.Error("RemoveWorktree removes a worktree with an untracked file; want an error")
	}
	if _, err := os.Stat(filepath.Join(dir, "new.txt")); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-qm", "work")
	if err := r.RemoveWorktree(ctx, dir); err != nil {
		t.Error(err)
	}
	if got := git(t, r.Top(), "log", "-1", "--format=%s", "agent/one"); got != "work\n" {
		t.Errorf("the branch's last commit is %q; want work", got)
	}
}

func TestWorktreeInsideIsNoChange(t *testing.T) {
	r, top := newRepo(t)
	before := snapshot(t, r)
	for _, name := range []string{".worktrees/one", "a [dir]*/two"} {
		if err := r.AddWorktree(context.Background(), "b-"+filepath.Base(name), filepath.Join(top, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, top, "a [dir]*/three.txt", "x")
	if got := git(t, top, "status", "--porcelain", "-uall"); got != "?? \"a [dir]*/three.txt\"\n" {
		t.Errorf("the status is %q; want the file alone", got)
	}
	os.Remove(filepath.Join(top, "a [dir]*/three.txt"))
	if after := snapshot(t, r); after != before {
		t.Error("a worktree inside the working tree counts as a change; want none")
	}
}

func TestFolderWithoutRepository(t *testing.T) {
	if _, err := repo.Open(context.Background(), t.TempDir()); !errors.Is(err, repo.ErrNone) {
		t.Errorf("Open = %v; want %v", err, repo.ErrNone)
	}
}
