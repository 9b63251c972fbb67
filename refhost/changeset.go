package refhost

import (
	"encoding/json"
	"slices"

	"ahprelay/ahp"
)

// A changeset is what the agent has changed in a session's files: it is there
// from the first edit on that was allowed. Its state is guarded by the host's
// lock.
type changeset struct {
	session *session
	uri     string
	files   []changedFile
}

type changedFile struct {
	ID       string          `json:"id"`
	Edit     json.RawMessage `json:"edit"`
	Reviewed bool            `json:"reviewed,omitempty"`
}

// changesetInfo is how the session lists it.
type changesetInfo struct {
	Label        string          `json:"label"`
	URITemplate  string          `json:"uriTemplate"`
	ChangeKind   string          `json:"changeKind"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// changeOperations are what can be done with changes.
const changeOperations = `[{"id":"commit","label":"Commit","scopes":["changeset"],"status":"idle"},` +
	`{"id":"revert","label":"Revert","scopes":["resource"],"status":"idle"}]`

func (c *changeset) state() any {
	files := c.files
	if files == nil {
		files = []changedFile{}
	}
	return struct {
		Status     string          `json:"status"`
		Files      []changedFile   `json:"files"`
		Operations json.RawMessage `json:"operations"`
	}{"ready", files, json.RawMessage(changeOperations)}
}

// changesets is how the session lists what it has.
func (s *session) changesets() []changesetInfo {
	if s.changed == nil {
		return nil
	}
	return []changesetInfo{{"Session Changes", s.changed.uri, "session", json.RawMessage(`{"review":{}}`)}}
}

// changeLocked adds changes to the session's.
func (s *session) changeLocked(files ...changedFile) {
	h := s.host
	if s.changed == nil {
		s.changed = &changeset{session: s, uri: s.uri + "/changeset/session"}
		h.changesets[s.changed.uri] = s.changed
		h.emitLocked(s.uri, struct {
			Type       string          `json:"type"`
			Changesets []changesetInfo `json:"changesets"`
		}{"session/changesetsChanged", s.changesets()})
	}
	for _, f := range files {
		c := s.changed
		c.files = append(slices.DeleteFunc(c.files, func(other changedFile) bool { return other.ID == f.ID }), f)
		h.emitLocked(c.uri, struct {
			Type string      `json:"type"`
			File changedFile `json:"file"`
		}{"changeset/fileSet", f})
	}
}

// changesetActionLocked handles changeset/filesReviewChanged; other actions are
// not for clients.
func (h *Host) changesetActionLocked(env envelope) {
	var a struct {
		Files    []string `json:"files"`
		Reviewed bool     `json:"reviewed"`
	}
	c := h.changesets[env.channel]
	if c == nil || env.kind != "changeset/filesReviewChanged" || json.Unmarshal(env.action, &a) != nil {
		return
	}
	for i := range c.files {
		if slices.Contains(a.Files, c.files[i].ID) {
			c.files[i].Reviewed = a.Reviewed
		}
	}
	h.publishLocked(env, nil)
}

// invokeChangesetOperationLocked answers invokeChangesetOperation: commit takes
// all changes away, revert those of one file.
func (h *Host) invokeChangesetOperationLocked(_ *conn, raw json.RawMessage) (any, error) {
	params, err := decodeParams[struct {
		Channel     string `json:"channel"`
		OperationID string `json:"operationId"`
		Target      *struct {
			Resource string `json:"resource"`
		} `json:"target"`
	}](raw)
	if err != nil {
		return nil, err
	}
	c := h.changesets[params.Channel]
	said := struct {
		Message string `json:"message"`
	}{"Committed."}
	switch {
	case c == nil:
		return nil, fail(ahp.CodeNotFound, "Changeset not found: %s", params.Channel)
	case params.OperationID == "commit":
		c.files = nil
		h.emitLocked(c.uri, plainAction{"changeset/cleared"})
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
