package canvas

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A client with the level operate can open a port on the host's loopback interface. Like a canvas,
// the port gets an origin of its own. The host's owner must permit the port (host-agent run
// --preview-port):
//
//	→ {"id":1,"method":"relay/preview","params":{"channel":"ahp-session:/<id>","port":5173,"path":"/"}}
//	← {"id":1,"result":{"id":"…","port":5173,"url":"https://<name>.<canvas domain>/.ahp-canvas/<ticket>/","origin":"https://<name>.<canvas domain>",
//	    "access":"use","expires":"2026-03-04T05:06:07Z"}}
//	→ {"id":2,"method":"relay/previews","params":{"channel":"ahp-session:/<id>"}}
//	← {"id":2,"result":{"previews":[{"id":"…","port":5173,"channel":"ahp-session:/<id>","subject":"ada","since":"…"}]}}
//	→ {"id":3,"method":"relay/previewClose","params":{"channel":"ahp-session:/<id>","id":"…"}}
//	← {"id":3,"result":{}}
//
// The host-agent decides, and remembers the open previews; the relay stores nothing. A list
// contains the previews that the subject has opened with any client. With ahp-root:// it covers all
// sessions.

// The methods of previews.
const (
	previewMethod      = "relay/preview"
	previewsMethod     = "relay/previews"
	previewCloseMethod = "relay/previewClose"
)

// maxPreviewPath is the longest path of a preview in bytes.
const maxPreviewPath = 4096

// previewAnswer returns the function that answers a client's request about previews.
func (c *Canvases) previewAnswer(env *ahp.Envelope, from Asker) (answer func(context.Context) ([]byte, error), err error) {
	method := string(env.Method)
	m := [...]ahp.Member{{Name: "port"}, {Name: "path"}, {Name: "id"}}
	if err := ahp.Members(env.Params, m[:]); err != nil {
		return nil, fail(ahp.CodeInvalidParams, "params: %v", err)
	}
	grant, err := from.Grant(string(env.Channel))
	if err != nil {
		return nil, err
	}
	grant.Preview = true
	switch method {
	case previewsMethod:
		return func(ctx context.Context) ([]byte, error) { return c.previews(ctx, grant, from.Remote) }, nil
	case previewCloseMethod:
		id, _ := ahp.Text(m[2].Raw)
		return func(ctx context.Context) ([]byte, error) { return c.closePreview(ctx, grant, id, from.Remote) }, nil
	}
	port, err := strconv.ParseUint(string(m[0].Raw), 10, 16)
	if err != nil || port == 0 {
		return nil, fail(ahp.CodeInvalidParams, "port: want a number from 1 to 65535")
	}
	path, _ := ahp.Text(m[1].Raw)
	path, fine := previewPath(path)
	if !fine {
		return nil, fail(ahp.CodeInvalidParams, "path: want at most %d bytes, beginning with /", maxPreviewPath)
	}
	return func(ctx context.Context) ([]byte, error) {
		return c.preview(ctx, grant, port, path, from.Remote)
	}, nil
}

// previewPath returns a path, with query and fragment, in URL form without the first
// slash; ok is false if it is invalid.
func previewPath(text string) (path string, ok bool) {
	if text == "" {
		return "", true
	}
	u, err := url.Parse(text)
	if err != nil || len(text) > maxPreviewPath || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(text, "/") {
		return "", false
	}
	return strings.TrimPrefix(u.String(), "/"), true
}

// preview asks the host-agent to open a preview, and returns the response with a ticket.
func (c *Canvases) preview(ctx context.Context, grant auth.CanvasGrant, port uint64, path, remote string) ([]byte, error) {
	response, body, err := c.consult(ctx, grant, remote, http.MethodPost, "/?port="+strconv.FormatUint(port, 10))
	if err != nil {
		return nil, err
	}
	var opened struct{ ID string }
	if response.StatusCode != http.StatusCreated || json.Unmarshal(body, &opened) != nil || opened.ID == "" {
		return nil, refusedBy(response, body)
	}
	grant.Instance, grant.ClientID = opened.ID, "" // shared by all clients of the subject
	at, err := c.address(grant, path)
	if err != nil {
		return nil, err
	}
	return json.Marshal(struct {
		ID   string `json:"id"`
		Port uint64 `json:"port"`
		*canvasAddress
		Access  string    `json:"access"`
		Expires time.Time `json:"expires"`
	}{opened.ID, port, at, response.Header.Get(canvasAccessHeader), grant.Expires})
}

func (c *Canvases) previews(ctx context.Context, grant auth.CanvasGrant, remote string) ([]byte, error) {
	response, body, err := c.consult(ctx, grant, remote, http.MethodGet, "/")
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK || !json.Valid(body) {
		return nil, refusedBy(response, body)
	}
	return json.Marshal(map[string]json.RawMessage{"previews": body})
}

func (c *Canvases) closePreview(ctx context.Context, grant auth.CanvasGrant, id, remote string) ([]byte, error) {
	response, body, err := c.consult(ctx, grant, remote, http.MethodDelete, "/?id="+url.QueryEscape(id))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusNoContent {
		return nil, refusedBy(response, body)
	}
	return []byte("{}"), nil
}
