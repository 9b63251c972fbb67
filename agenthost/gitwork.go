package agenthost

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ahprelay/agenthost/repo"
	"ahprelay/ahp"
)

// A work is the state of a session's git repository. The host's lock guards its fields.
type work struct {
	repo *repo.Repo // nil until the host needs it
	off  bool       // snapshots fail or take too long, so clients see the agent's own diffs

	branch string // branch when the changes were last read; "": none

	Base  string      `json:"base"`            // tree at the session's beginning, or after its last commit
	Turns []turnTrees `json:"turns,omitempty"` // oldest first

	// Set only if the host has made a worktree for the session.
	Worktree string `json:"worktree,omitempty"` // folder of the worktree
	Origin   string `json:"origin,omitempty"`   // folder in the repository to which the worktree belongs
}

// turnTrees are the git trees before and after a turn.
type turnTrees struct {
	Turn string `json:"turn"`
	From string `json:"from"`
	To   string `json:"to"`
}

// Bounds of the changes in a repository.
const (
	snapshotTimeout = 5 * time.Second // limit for the snapshot before a turn

	maxTurnTrees    = 64      // number of turns for which a session can show the changes
	maxTurnsOpen    = 16      // number of turns' changesets that a session keeps in memory
	maxGitFiles     = 1000    // number of files in a changeset
	maxGitContent   = 8 << 20 // bytes of texts in a changeset; further files have no text
	turnChanges     = "/changeset/turn/"
	maxMessage      = 16 << 10            // bytes of a commit message
	messageMeta     = "agenthost.message" // key in the _meta of an operation that accepts a message, and of its invocation
	discardedPrompt = "This gives the file the content that it had before. It cannot be undone."
)

var (
	commitOperation = `{"id":"commit","label":"Commit","description":"Commits these files as they are, on the present branch.","scopes":["changeset"],"status":"idle","_meta":{"` + messageMeta + `":true}}`
	discard         = `{"id":"discard","label":"Discard","description":"Discards the changes in this file.","scopes":["resource"],"confirmation":"` + discardedPrompt + `","status":"idle"}`

	sessionOperations = json.RawMessage(`[` + commitOperation + `,` + discard + `]`)
	turnOperations    = json.RawMessage(`[` + discard + `]`)
)

// workOf returns the repository of the chat's session, or nil.
func (st *seat) workOf(ctx context.Context) *work {
	h := st.host
	h.mu.Lock()
	s, folder := st.chat.session, st.startOfLocked().Folder
	w := s.work
	h.mu.Unlock()
	if w != nil && w.repo != nil {
		return w
	}
	if folder == "" {
		return nil
	}
	r, err := repo.Open(ctx, folder)
	if err != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.work == nil {
		s.work = &work{}
	}
	if s.work.repo == nil {
		s.work.repo = r
	}
	return s.work
}

// beforeTurn returns the git tree before a turn, or "" without a repository or
// snapshot.
func (st *seat) beforeTurn(ctx context.Context) string {
	w := st.workOf(ctx)
	if w == nil {
		return ""
	}
	h := st.host
	limited, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	h.mu.Lock()
	off := w.off
	h.mu.Unlock()
	if off {
		return ""
	}
	tree, err := w.repo.Snapshot(limited)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		w.off = ctx.Err() == nil
		h.log.Info("repository changes not read", "chat", st.chat.uri, "error", err)
		return ""
	}
	if w.Base == "" {
		w.Base = tree
		st.chat.session.saveLocked()
	}
	return tree
}

// afterTurn publishes the files changed by a turn.
func (st *seat) afterTurn(turn, from string) {
	h := st.host
	if from == "" {
		return
	}
	h.mu.Lock()
	s := st.chat.session
	r := s.work.repo
	h.mu.Unlock()
	to, err := r.Snapshot(h.ctx)
	if err != nil {
		h.log.Info("repository changes not shown", "chat", st.chat.uri, "error", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now, ok := h.sessions.get(s.uri); !ok || now != s {
		return // the session was removed during the turn
	}
	if to != from {
		s.work.Turns = append(s.work.Turns, turnTrees{turn, from, to})
		s.work.Turns = s.work.Turns[max(0, len(s.work.Turns)-maxTurnTrees):]
		s.saveLocked()
	}
	if to != s.work.Base || s.changed != nil {
		s.gitChangesLocked().computeLocked()
	}
}

// gitChangesLocked returns the session's changeset. If it creates the changeset, it
// publishes it.
func (s *session) gitChangesLocked() *changeset {
	if s.changed == nil {
		s.changeLocked()
		s.changed.operations = sessionOperations
		s.changed.trees = func() (from, to string) { return s.work.Base, "" }
	}
	return s.changed
}

// countLocked begins to read a session's changes, unless this host has already read
// them.
func (c *changeset) countLocked() {
	if c != nil && c.trees != nil && !c.computed && c.failed == "" {
		c.computeLocked()
	}
}

// turnChangesetLocked returns the changeset of a turn, or nil if the session no longer
// has that turn's trees.
func (ts *changesetTable) turnChangesetLocked(uri string) *changeset {
	session, turn, ok := strings.Cut(uri, turnChanges)
	s, known := ts.host.sessions.get(session)
	if !ok || !known || s.work == nil {
		return nil
	}
	i := slices.IndexFunc(s.work.Turns, func(t turnTrees) bool { return t.Turn == turn })
	if i < 0 {
		return nil
	}
	t := s.work.Turns[i]
	c := &changeset{session: s, uri: uri, operations: turnOperations, trees: func() (from, to string) { return t.From, t.To }}
	s.turnsOpen = append(s.turnsOpen, uri)
	if len(s.turnsOpen) > maxTurnsOpen {
		delete(ts.open, s.turnsOpen[0])
		s.turnsOpen = s.turnsOpen[1:]
	}
	ts.open[uri] = c
	return c
}

// computeLocked reads a changeset from the repository, and publishes it.
func (c *changeset) computeLocked() {
	h := c.session.host
	if c.again = c.computing; c.computing {
		return
	}
	c.computing = true
	from, to := c.trees()
	known := maps.Clone(c.git)
	h.goLocked(func() {
		files, order, branch, err := c.read(from, to, known)
		h.mu.Lock()
		defer h.mu.Unlock()
		c.computing = false
		if err != nil {
			h.log.Info("changes not computed", "changeset", c.uri, "error", err)
			c.failed = "The changes cannot be read from the repository."
		} else {
			c.failed, c.from, c.git = "", from, files
			c.onBranchLocked(branch)
		}
		c.publishLocked(order)
		if c.again {
			c.computeLocked()
		}
	})
}

// A gitFile is a changed file, with its encoded form.
type gitFile struct {
	change repo.Change
	edit   json.RawMessage
}

// read returns the files that differ between two trees, their ids in order, and the
// current branch. It does not read files in known again.
func (c *changeset) read(from, to string, known map[string]gitFile) (_ map[string]gitFile, order []string, branch string, err error) {
	h := c.session.host
	w, err := c.session.openWork()
	if err != nil {
		return nil, nil, "", err
	}
	if to == "" {
		if to, err = w.repo.Snapshot(h.ctx); err != nil {
			return nil, nil, "", err
		}
	}
	changes, err := w.repo.Changes(h.ctx, from, to)
	if err != nil {
		return nil, nil, "", err
	}
	files, left := map[string]gitFile{}, int64(maxGitContent)
	order = []string{}
	for _, change := range changes[:min(len(changes), maxGitFiles)] {
		id := fileURI(change.Path)
		order = append(order, id)
		if k, ok := known[id]; ok && k.change.Before == change.Before && k.change.After == change.After {
			files[id] = k
			continue
		}
		edit := fileEdit{Diff: lineCount{change.Added, change.Removed}}
		edit.Before = newSide(change.Path, w.text(h.ctx, change.Before, &left))
		edit.After = newSide(change.Path, w.text(h.ctx, change.After, &left))
		files[id] = gitFile{change, encode(edit)}
	}
	return files, order, w.repo.Branch(h.ctx), nil
}

// onBranchLocked publishes a changed branch, in the form of VS Code's host.
func (c *changeset) onBranchLocked(branch string) {
	s := c.session
	if s.work == nil || s.work.branch == branch {
		return
	}
	s.work.branch = branch
	s.host.emitLocked(s.uri, struct {
		Type string          `json:"type"`
		Meta json.RawMessage `json:"_meta,omitempty"`
	}{"session/metaChanged", metaOf(s)})
	s.touchLocked()
}

// metaOf returns a session's _meta.
func metaOf(s *session) json.RawMessage {
	switch {
	case len(s.directories) == 0:
		return workspaceless
	case s.work != nil && s.work.branch != "":
		return encode(map[string]any{"git": map[string]string{"branchName": s.work.branch}})
	}
	return nil
}

func (s *session) openWork() (*work, error) {
	if w := s.chat.seat.workOf(s.host.ctx); w != nil {
		return w, nil
	}
	return nil, repo.ErrNone
}

// text returns a blob's text, a substitute if the blob is too large or not UTF-8,
// or nil if there is no file.
func (w *work) text(ctx context.Context, blob string, left *int64) *string {
	if blob == "" {
		return nil
	}
	text := "(The host does not show this file.)\n"
	size, err := w.repo.Size(ctx, blob)
	if err != nil || size > maxDiff || size > *left {
		return &text
	}
	*left -= size
	content, err := w.repo.Content(ctx, blob)
	if err == nil && utf8.ValidString(content) {
		text = content
	}
	return &text
}

// publishLocked publishes a computed changeset, or the reason why it could not be
// computed.
func (c *changeset) publishLocked(order []string) {
	h := c.session.host
	if c.failed != "" {
		h.emitLocked(c.uri, struct {
			Type   string    `json:"type"`
			Status string    `json:"status"`
			Error  TurnError `json:"error"`
		}{"changeset/statusChanged", "error", TurnError{"changes", c.failed}})
		return
	}
	reviewed := map[string]string{}
	for _, f := range c.files {
		if f.Reviewed {
			reviewed[f.ID] = string(f.Edit)
		}
	}
	files := []changedFile{}
	var sum changes
	for _, id := range order {
		f := c.git[id]
		files = append(files, changedFile{ID: id, Edit: f.edit, Reviewed: reviewed[id] == string(f.edit)})
		sum.Additions, sum.Deletions, sum.Files = sum.Additions+f.change.Added, sum.Deletions+f.change.Removed, sum.Files+1
	}
	c.files, c.computed = files, true
	h.emitLocked(c.uri, struct {
		Type       string          `json:"type"`
		Files      []changedFile   `json:"files"`
		Operations json.RawMessage `json:"operations,omitempty"`
	}{"changeset/contentChanged", files, c.operations})
	h.emitLocked(c.uri, struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	}{"changeset/statusChanged", "ready"})
	if c == c.session.changed {
		c.session.sum = sum
		c.session.touchLocked()
	}
}

// invokeGit answers invokeChangesetOperation on a host with agents.
func (ts *changesetTable) invokeGit(_ *conn, params operationParams) (any, error) {
	h := ts.host
	h.mu.Lock()
	c := ts.open[params.Channel]
	var file gitFile
	known := false
	if c != nil && params.Target != nil {
		file, known = c.git[params.Target.Resource]
	}
	h.mu.Unlock()
	var err error
	said := operationResult{Message: "Committed."}
	switch {
	case c == nil:
		return nil, fail(ahp.CodeNotFound, "Changeset not found: %s", params.Channel)
	case c.trees != nil && params.OperationID == "commit" && c == c.session.changed:
		err = c.commit(params.message())
	case c.trees != nil && params.OperationID == "discard" && known:
		said.Message = "Discarded."
		err = c.discard(file.change)
	default:
		return nil, fail(ahp.CodeInvalidParams, "Not an operation here: %s", params.OperationID)
	}
	if errors.Is(err, repo.ErrChanged) {
		return nil, fail(ahp.CodeConflict, "%s has changed since. Nothing was discarded.", file.change.Path)
	}
	if err != nil {
		return nil, fail(ahp.CodeInternalError, "%v", err)
	}
	return said, nil
}

func (c *changeset) discard(change repo.Change) error {
	h := c.session.host
	w, err := c.session.openWork()
	if err != nil {
		return err
	}
	h.mu.Lock()
	from := c.from
	h.mu.Unlock()
	if err := w.repo.Discard(h.ctx, change, from); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c.session.gitChangesLocked().computeLocked()
	if c != c.session.changed { // the changeset of an earlier turn loses only this file
		delete(c.git, fileURI(change.Path))
		c.publishLocked(slices.DeleteFunc(c.ids(), func(id string) bool { return id == fileURI(change.Path) }))
	}
	return nil
}

func (c *changeset) ids() []string {
	var ids []string
	for _, f := range c.files {
		ids = append(ids, f.ID)
	}
	return ids
}

// commit commits the session's changes. Without a message, the session's title is the
// message. Afterwards, the changeset shows changes since this commit.
func (c *changeset) commit(message string) error {
	h := c.session.host
	w, err := c.session.openWork()
	if err != nil {
		return err
	}
	h.mu.Lock()
	message = cmp.Or(message, c.session.title, "Changes of a session")
	var changes []repo.Change
	for _, f := range c.git {
		changes = append(changes, f.change)
	}
	h.mu.Unlock()
	if len(changes) == 0 {
		return errors.New("there is nothing to commit")
	}
	if err := w.repo.Commit(h.ctx, changes, message); err != nil {
		return err
	}
	tree, err := w.repo.Snapshot(h.ctx)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w.Base = tree
	c.session.saveLocked()
	c.computeLocked()
	return nil
}

// Options of a new session in a repository.
const (
	optionIsolation = "isolation" // folder or worktree
	optionBranch    = "branch"
	optionLocation  = "worktreeLocation"
)

// isolationOptions describes the options of a session in a repository: in which folder
// the agent works.
func (rs *resources) isolationOptions(r *repo.Repo, config map[string]any) (properties, values map[string]any) {
	properties = map[string]any{optionIsolation: map[string]any{
		"type": "string", "title": "Where the agent works", "enum": []string{"folder", "worktree"},
		"enumLabels": []string{"In the folder", "In a new worktree"}, "default": "folder",
	}}
	values = map[string]any{optionIsolation: "folder"}
	if config[optionIsolation] != "worktree" {
		return properties, values
	}
	values[optionIsolation] = "worktree"
	branch, _ := config[optionBranch].(string)
	if branch == "" {
		branch = fmt.Sprintf("agent/%08x", rs.host.cfg.Now().Unix())
	}
	location, _ := config[optionLocation].(string)
	if location == "" {
		name := strings.ReplaceAll(branch, "/", "-")
		if location = filepath.Join(r.Top()+".worktrees", name); !rs.allowsNew(location) {
			location = filepath.Join(r.Top(), ".worktrees", name)
		}
	}
	properties[optionBranch] = map[string]any{"type": "string", "title": "New branch", "default": branch}
	properties[optionLocation] = map[string]any{"type": "string", "title": "Folder of the worktree", "default": location}
	values[optionBranch], values[optionLocation] = branch, location
	return properties, values
}

// addWorktree makes a worktree if the new session asks for one, and puts it in place
// of the session's first folder. Otherwise it returns nil.
func (ss *sessionTable) addWorktree(ctx context.Context, params *createSessionParams) (*work, error) {
	h, folders := ss.host, folderPaths(params.WorkingDirectories)
	if params.Config[optionIsolation] != "worktree" {
		return nil, nil
	}
	if len(folders) == 0 {
		return nil, fail(ahp.CodeInvalidParams, "A worktree needs a folder")
	}
	r, err := repo.Open(ctx, folders[0])
	if err != nil {
		return nil, fail(ahp.CodeInvalidParams, "%s is in no git repository", folders[0])
	}
	_, values := h.resources.isolationOptions(r, params.Config)
	dir := filepath.Clean(values[optionLocation].(string))
	if _, err := os.Lstat(dir); err == nil {
		return nil, fail(ahp.CodeAlreadyExists, "%s exists already", dir)
	}
	if !h.resources.allowsNew(dir) {
		return nil, fail(ahp.CodePermissionDenied, "%s is outside of the folders of this host", dir)
	}
	if err := r.AddWorktree(ctx, values[optionBranch].(string), dir); err != nil {
		return nil, fail(ahp.CodeInternalError, "The worktree was not created: %v", err)
	}
	params.WorkingDirectories = append([]string{fileURI(dir)}, params.WorkingDirectories[1:]...)
	return &work{Worktree: dir, Origin: folders[0]}, nil
}

// leaveWorktree removes the worktree made for a session, unless it has uncommitted
// work.
func (w *work) leaveWorktree(h *Host) {
	if w == nil || w.Worktree == "" {
		return
	}
	r, err := repo.Open(h.ctx, w.Origin)
	if err == nil {
		err = r.RemoveWorktree(h.ctx, w.Worktree)
	}
	if err != nil {
		h.log.Info("worktree not removed", "folder", w.Worktree, "error", err)
	}
}

// resolveConfig answers resolveSessionConfig on a host with agents.
func (ss *sessionTable) resolveConfig(_ *conn, params createSessionParams) (any, error) {
	h := ss.host
	var properties, values map[string]any
	if folders := folderPaths(params.WorkingDirectories); len(folders) > 0 {
		if r, err := repo.Open(h.ctx, folders[0]); err == nil {
			properties, values = h.resources.isolationOptions(r, params.Config)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := ss.providerLocked(params.Provider)
	if err != nil {
		return nil, err
	}
	return schemaOf(withValues(p.startOptions(h), params.Config), properties, values), nil
}
