package agenthost

import (
	"encoding/json"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// A changeset holds the agent's changes to a session's files. It is created with the
// first change. The host's lock guards its state.
type changeset struct {
	session *session
	uri     string
	files   []changedFile

	before map[string]*string // content of each path before the agent's first change

	// Set only in a repository.
	trees      func() (from, to string) // returns the git trees before and after; an empty tree means the files on disk
	from       string                   // tree from which the changes were last computed
	git        map[string]gitFile       // changed files, by id
	operations json.RawMessage
	computed   bool
	computing  bool
	again      bool   // files have changed while the changes were computed
	failed     string // reason why the changes could not be read; "": none
}

type changedFile struct {
	ID       string          `json:"id"`
	Edit     json.RawMessage `json:"edit"`
	Reviewed bool            `json:"reviewed,omitempty"`
}

// changesetInfo describes a changeset in the session's state.
type changesetInfo struct {
	Label        string          `json:"label"`
	URITemplate  string          `json:"uriTemplate"`
	ChangeKind   string          `json:"changeKind"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// changeOperations are the operations on the changes of a scripted agent's session.
const changeOperations = `[{"id":"commit","label":"Commit","scopes":["changeset"],"status":"idle","_meta":{"` + messageMeta + `":true}},` +
	`{"id":"pull-request","label":"Create Pull Request","scopes":["changeset"],"status":"idle"},` +
	`{"id":"revert","label":"Revert","scopes":["resource"],"confirmation":"This gives {0} the content that it had before.","status":"idle"}]`

func (c *changeset) state() any {
	files := c.files
	if files == nil {
		files = []changedFile{}
	}
	operations, status := c.operations, "ready"
	var failed *TurnError
	switch {
	case c.session.provider.info.Scripted != nil:
		operations = json.RawMessage(changeOperations)
	case c.failed != "":
		status, failed = "error", &TurnError{"changes", c.failed}
	case c.trees != nil && !c.computed:
		status = "computing"
		c.computeLocked()
	}
	return struct {
		Status     string          `json:"status"`
		Error      *TurnError      `json:"error,omitempty"`
		Files      []changedFile   `json:"files"`
		Operations json.RawMessage `json:"operations,omitempty"`
	}{status, failed, files, operations}
}

// changesets returns the entries for changesets in the session's state.
func (s *session) changesets() []changesetInfo {
	if s.changed == nil {
		return nil
	}
	infos := []changesetInfo{{"Session Changes", s.changed.uri, "session", json.RawMessage(`{"review":{}}`)}}
	if s.work != nil {
		infos = append(infos, changesetInfo{"This Turn", s.uri + turnChanges + "{turnId}", "turn", json.RawMessage(`{}`)})
	}
	return infos
}

// changeLocked adds changes to the session's changeset.
func (s *session) changeLocked(files ...changedFile) {
	h := s.host
	if s.changed == nil {
		s.changed = &changeset{session: s, uri: s.uri + "/changeset/session"}
		h.changesets.open[s.changed.uri] = s.changed
		h.emitLocked(s.uri, struct {
			Type       string          `json:"type"`
			Changesets []changesetInfo `json:"changesets"`
		}{"session/changesetsChanged", s.changesets()})
	}
	for _, f := range files {
		c := s.changed
		if i := slices.IndexFunc(c.files, func(other changedFile) bool { return other.ID == f.ID }); i >= 0 {
			c.files[i] = f
		} else {
			c.files = append(c.files, f)
		}
		h.emitLocked(c.uri, struct {
			Type string      `json:"type"`
			File changedFile `json:"file"`
		}{"changeset/fileSet", f})
	}
}

// maxChanged bounds the files of a changeset without a repository.
const maxChanged = 1000

// agentChangedLocked records a file change that the agent reports, unless git shows
// the session's changes. The changeset compares the file with its content before
// the agent's first change.
func (s *session) agentChangedLocked(d Diff) {
	if s.work != nil && s.work.repo != nil && !s.work.off {
		return // in a repository, afterTurn finds the changes
	}
	if s.changed != nil {
		first, ok := s.changed.before[d.Path]
		switch {
		case ok:
			d.Old = first
		case len(s.changed.before) >= maxChanged:
			return
		}
	}
	s.changeLocked(changedFile{ID: fileURI(d.Path), Edit: encode(d.edit())})
	if s.changed.before == nil {
		s.changed.before = map[string]*string{}
	}
	s.changed.before[d.Path] = d.Old
}

// changesetActionLocked handles changeset/filesReviewChanged. Clients may dispatch no
// other action on a changeset.
func (cs *changesetTable) changesetActionLocked(env envelope) {
	var a struct {
		Files    []string `json:"files"`
		Reviewed bool     `json:"reviewed"`
	}
	c := cs.open[env.channel]
	if c == nil || env.kind != "changeset/filesReviewChanged" || json.Unmarshal(env.action, &a) != nil {
		return
	}
	for i := range c.files {
		if slices.Contains(a.Files, c.files[i].ID) {
			c.files[i].Reviewed = a.Reviewed
		}
	}
	cs.host.publishLocked(env, nil)
}

// operationParams are the parameters of invokeChangesetOperation.
type operationParams struct {
	Channel     string `json:"channel"`
	OperationID string `json:"operationId"`
	Target      *struct {
		Resource string `json:"resource"`
	} `json:"target"`
	Meta map[string]json.RawMessage `json:"_meta"`
}

// message returns the client's commit message, or "".
func (p *operationParams) message() string {
	var text string
	if json.Unmarshal(p.Meta[messageMeta], &text) != nil || len(text) > maxMessage {
		return ""
	}
	return strings.TrimSpace(text)
}

// operationResult is the result of invokeChangesetOperation.
type operationResult struct {
	Message  string    `json:"message"` // for people
	FollowUp *followUp `json:"followUp,omitempty"`
}

// followUp is a resource that the client should show after an operation.
type followUp struct {
	Content struct {
		URI string `json:"uri"`
	} `json:"content"`
	External bool `json:"external"`
}

// invokeChangesetOperationLocked answers invokeChangesetOperation for scripted agents.
// It touches no file: commit clears the changeset, revert removes a file from the
// changeset, and pull-request returns an example address.
func (cs *changesetTable) invokeChangesetOperationLocked(_ *conn, params operationParams) (any, error) {
	h := cs.host
	c := cs.open[params.Channel]
	said := operationResult{Message: "Committed."}
	switch {
	case c == nil:
		return nil, fail(ahp.CodeNotFound, "Changeset not found: %s", params.Channel)
	case params.OperationID == "commit":
		if message := params.message(); message != "" {
			said.Message = "Committed: " + message
		}
		c.files = nil
		h.emitLocked(c.uri, plainAction{"changeset/cleared"})
	case params.OperationID == "pull-request":
		said = operationResult{"Created.", &followUp{External: true}}
		said.FollowUp.Content.URI = "https://example.com/pulls/1"
	case params.OperationID == "revert" && params.Target != nil:
		said.Message = "Reverted."
		id := params.Target.Resource
		c.files = slices.DeleteFunc(c.files, func(f changedFile) bool { return f.ID == id })
		h.emitLocked(c.uri, struct {
			Type   string `json:"type"`
			FileID string `json:"fileId"`
		}{"changeset/fileRemoved", id})
	default:
		return nil, fail(ahp.CodeInvalidParams, "Not an operation here: %s", params.OperationID)
	}
	return said, nil
}
