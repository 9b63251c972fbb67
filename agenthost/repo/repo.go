// Package repo reads and changes the git repository of a session's folder, by means of
// the git command.
//
// A snapshot is a git tree: the person's index, with the present state of all files in the
// folder that git does not ignore. It is made with a copy of the index, so the person's
// index stays unchanged. Nothing refers to the tree, so git removes it after some weeks.
//
// Every command has a time limit, never prompts, and takes paths literally.
package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

var (
	// ErrNone reports that the folder is not in a repository, or that git is missing.
	ErrNone = errors.New("no git repository")

	// ErrChanged reports that a file has changed since the snapshot.
	ErrChanged = errors.New("the file has changed since")
)

const (
	timeout   = 20 * time.Second
	maxOutput = 64 << 20
)

// A Repo is a folder in a repository. Its methods may be called at any time.
type Repo struct {
	folder string // the session's
	top    string // the working tree's
}

// Open returns the repository of a folder.
func Open(ctx context.Context, folder string) (*Repo, error) {
	r := &Repo{folder: folder}
	top, err := r.git(ctx, nil, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	r.top = strings.TrimSuffix(top, "\n")
	return r, nil
}

// Top is the root of the working tree.
func (r *Repo) Top() string { return r.top }

// git runs a command in the folder.
func (r *Repo) git(ctx context.Context, env []string, args ...string) (string, error) {
	return r.gitWith(ctx, env, nil, args...)
}

func (r *Repo) gitWith(ctx context.Context, env []string, stdin io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.folder, "--literal-pathspecs", "-c", "core.quotePath=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "GIT_EDITOR=true", "LC_ALL=C")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = stdin
	cmd.WaitDelay = time.Second
	var out, errs bounded
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if args[0] == "-C" {
			args = args[2:]
		}
		if text := strings.TrimSpace(errs.String()); text != "" {
			return "", fmt.Errorf("git %s: %s", args[0], text)
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return out.String(), nil
}

// A bounded buffer refuses output above maxOutput.
type bounded struct{ buf bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > maxOutput {
		return 0, errors.New("too much output")
	}
	return b.buf.Write(p)
}

func (b *bounded) String() string { return b.buf.String() }

// Snapshot returns a tree of the folder's current files.
func (r *Repo) Snapshot(ctx context.Context) (tree string, err error) {
	own, err := r.git(ctx, nil, "rev-parse", "--path-format=absolute", "--git-path", "index")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "agenthost-index-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	index := filepath.Join(dir, "index")
	// With a copy of the person's index, git does not read unchanged files again.
	if data, err := os.ReadFile(strings.TrimSuffix(own, "\n")); err == nil {
		if err := os.WriteFile(index, data, 0o600); err != nil {
			return "", err
		}
	}
	env := []string{"GIT_INDEX_FILE=" + index}
	if _, err := r.git(ctx, env, "add", "--all", "--", "."); err != nil {
		return "", err
	}
	tree, err = r.git(ctx, env, "write-tree")
	return strings.TrimSuffix(tree, "\n"), err
}

// A Change is a file that differs between two trees.
type Change struct {
	Path           string // absolute
	Before, After  string // blobs; "": the file does not exist
	Added, Removed int    // lines; 0 in binary files
	name           string // in the working tree
}

// Changes returns the files that differ between two trees. A moved file is listed as
// one deleted and one new file.
func (r *Repo) Changes(ctx context.Context, from, to string) ([]Change, error) {
	out, err := r.git(ctx, nil, "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", "--raw", "--numstat", from, to)
	if err != nil {
		return nil, err
	}
	var changes []Change
	at := map[string]int{}
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	for i := 0; i < len(fields); i++ {
		if raw, ok := strings.CutPrefix(fields[i], ":"); ok && i+1 < len(fields) {
			words := strings.Fields(raw) // modes, blobs, status
			if len(words) < 5 {
				return nil, fmt.Errorf("git diff-tree: unknown line %q", raw)
			}
			i++
			at[fields[i]] = len(changes)
			changes = append(changes, Change{Path: filepath.Join(r.top, filepath.FromSlash(fields[i])), name: fields[i], Before: blob(words[2]), After: blob(words[3])})
			continue
		}
		words := strings.SplitN(fields[i], "\t", 3)
		if len(words) < 3 {
			continue
		}
		if n, ok := at[words[2]]; ok {
			changes[n].Added, _ = strconv.Atoi(words[0]) // "-" in binary files
			changes[n].Removed, _ = strconv.Atoi(words[1])
		}
	}
	return changes, nil
}

func blob(hash string) string {
	if strings.Trim(hash, "0") == "" {
		return ""
	}
	return hash
}

// Size returns a blob's size.
func (r *Repo) Size(ctx context.Context, blob string) (int64, error) {
	out, err := r.git(ctx, nil, "cat-file", "-s", blob)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}

// Content returns a blob.
func (r *Repo) Content(ctx context.Context, blob string) (string, error) {
	return r.git(ctx, nil, "cat-file", "blob", blob)
}

// Discard restores the content that a changed file had before. It fails with
// [ErrChanged] if the file has changed since.
func (r *Repo) Discard(ctx context.Context, c Change, from string) error {
	if now, err := r.hash(ctx, c); err != nil || now != c.After {
		return errors.Join(fmt.Errorf("%s: %w", c.Path, ErrChanged), err)
	}
	if c.Before != "" {
		_, err := r.git(ctx, nil, "-C", r.top, "restore", "--source="+from, "--worktree", "--", c.name)
		return err
	}
	root, err := os.OpenRoot(r.top)
	if err != nil {
		return err
	}
	return errors.Join(root.Remove(filepath.FromSlash(c.name)), root.Close())
}

// hash returns the blob of a file's current content, or "" if there is no file.
func (r *Repo) hash(ctx context.Context, c Change) (string, error) {
	info, err := os.Lstat(c.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(c.Path)
		if err != nil {
			return "", err
		}
		out, err := r.gitWith(ctx, nil, strings.NewReader(target), "hash-object", "--stdin")
		return strings.TrimSpace(out), err
	}
	out, err := r.git(ctx, nil, "-C", r.top, "hash-object", "--", c.name)
	return strings.TrimSpace(out), err
}

// Commit commits the files in changes, and no other staged file.
func (r *Repo) Commit(ctx context.Context, changes []Change, message string) error {
	var names strings.Builder
	for _, c := range changes {
		names.WriteString(c.name + "\x00")
	}
	if _, err := r.gitWith(ctx, nil, strings.NewReader(names.String()), "-C", r.top, "add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul"); err != nil {
		return err
	}
	_, err := r.gitWith(ctx, nil, strings.NewReader(names.String()), "-C", r.top, "commit", "--quiet", "--only", "--message="+message, "--pathspec-from-file=-", "--pathspec-file-nul")
	return err
}

// Branch returns the name of the present branch, or "" if there is none.
func (r *Repo) Branch(ctx context.Context) string {
	name, err := r.git(ctx, nil, "symbolic-ref", "--quiet", "--short", "HEAD")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(name, "\n")
}

// AddWorktree makes a worktree with a new branch at the current commit.
func (r *Repo) AddWorktree(ctx context.Context, branch, dir string) error {
	if _, err := r.git(ctx, nil, "check-ref-format", "--branch", branch); err != nil || strings.HasPrefix(branch, "-") {
		return fmt.Errorf("%q is not the name of a branch", branch)
	}
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%q is not an absolute path", dir)
	}
	if name, err := filepath.Rel(r.top, dir); err == nil && filepath.IsLocal(name) {
		if err := r.exclude(ctx, name); err != nil {
			return err
		}
	}
	_, err := r.git(ctx, nil, "worktree", "add", "--quiet", "-b", branch, "--", dir)
	return err
}

// escaped escapes a path for git's ignore patterns.
var escaped = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, "\n", "?")

// exclude makes git ignore a folder in this repository, for this person only.
func (r *Repo) exclude(ctx context.Context, name string) error {
	file, err := r.git(ctx, nil, "rev-parse", "--path-format=absolute", "--git-path", "info/exclude")
	if err != nil {
		return err
	}
	line := "/" + escaped.Replace(filepath.ToSlash(name)) + "/\n"
	file = strings.TrimSuffix(file, "\n")
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) || bytes.Contains(data, []byte(line)) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		line = "\n" + line
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// RemoveWorktree removes a worktree. Git refuses if it has uncommitted work. The
// branch remains.
func (r *Repo) RemoveWorktree(ctx context.Context, dir string) error {
	_, err := r.git(ctx, nil, "worktree", "remove", "--", dir)
	return err
}
