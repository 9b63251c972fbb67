package agenthost

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ahprelay/ahp"
)

// A Canvas is a canvas that the host's own provider declares in every session.
type Canvas struct {
	// ID is the canvasId. It must not be one of [CanvasVerbs].
	ID string

	// Mode selects how clients read the content. Default: [CanvasChannel].
	Mode CanvasMode

	// URL addresses content on an external server. If set, Mode and Files are ignored.
	URL string

	// Files is the content, starting at index.html. Default: a notes application that
	// uses typical browser features.
	Files fs.FS `json:"-"`
}

// A CanvasMode is an addressing mode for canvas content.
type CanvasMode string

const (
	// CanvasChannel uses ahp-canvas-content:/<instanceId>/…, which clients read with
	// canvasReadResource.
	CanvasChannel CanvasMode = "channel"

	// CanvasLoopback uses http://127.0.0.1:<port>/…, on a server of the host. The host
	// then answers canvasReadResource with -32601.
	CanvasLoopback CanvasMode = "loopback"
)

//go:embed all:canvasapp
var canvasAppFiles embed.FS

// CanvasVerbs are the words behind "canvas" in prompts to the scripted agent that act on
// the open canvas. Any other word is a canvas's ID, so no ID may be such a word.
var CanvasVerbs = []string{"update", "stale", "ready", "message", "invoke", "close"}

// checkCanvases returns a validated copy of the canvases with defaults.
func checkCanvases(given []Canvas) ([]Canvas, error) {
	app, err := fs.Sub(canvasAppFiles, "canvasapp")
	if err != nil {
		panic(err) // cannot fail: the directory is embedded
	}
	var checked []Canvas
	for _, v := range given {
		v.Mode = cmp.Or(v.Mode, CanvasChannel)
		if v.Files == nil {
			v.Files = app
		}
		switch {
		case v.ID == "" || strings.ContainsAny(v.ID, " /") || slices.Contains(CanvasVerbs, v.ID):
			return nil, fmt.Errorf("agenthost: Config.Canvases has the ID %q; want a word without a slash that is not in CanvasVerbs", v.ID)
		case slices.ContainsFunc(checked, func(other Canvas) bool { return other.ID == v.ID }):
			return nil, fmt.Errorf("agenthost: Config.Canvases has %q twice", v.ID)
		case v.Mode != CanvasChannel && v.Mode != CanvasLoopback:
			return nil, fmt.Errorf("agenthost: Config.Canvases has the Mode %q; want %q or %q", v.Mode, CanvasChannel, CanvasLoopback)
		}
		checked = append(checked, v)
	}
	return checked, nil
}

// canvasFileName decodes a content path once, and returns the file's name. It returns
// false for a path that is malformed or leads out of the root.
func canvasFileName(escaped string) (string, bool) {
	name, err := url.PathUnescape(escaped)
	if err != nil || len(escaped) > maxCanvasPath || !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\\") {
		return "", false
	}
	name = cmp.Or(name, "index.html")
	return name, fs.ValidPath(name) && name != "."
}

// read returns a content file. uri is the address that the client has used for it.
func (app *Canvas) read(name, uri string) (canvasContent, error) {
	data, err := fs.ReadFile(app.Files, name)
	if errors.Is(err, fs.ErrNotExist) {
		return canvasContent{}, fail(ahp.CodeNotFound, "Content not found: %s", uri)
	}
	if err != nil {
		return canvasContent{}, fail(ahp.CodeInternalError, "Failed to read content: %s", uri)
	}
	content := canvasContent{URI: uri, MIMEType: contentType(name)}
	if utf8.Valid(data) {
		text := string(data)
		content.Text = &text
	} else {
		content.Blob = data
	}
	return content, nil
}

// openURLLocked returns the content address for clients before 0.10, and sets the web
// address. Each call gives a new address, so that clients load the content again; only
// [Canvas.URL] stays unchanged.
func (v *canvas) openURLLocked() (string, error) {
	v.round++
	entry := "index.html"
	if v.round > 1 {
		entry += fmt.Sprintf("?round=%d", v.round)
	}
	if v.app.URL != "" {
		v.web = v.app.URL
		return v.web, nil
	}
	h := v.session.host
	if v.app.Mode == CanvasLoopback || h.dialect.registers() {
		origin, err := h.canvases.canvasOriginLocked()
		if err != nil {
			return "", err
		}
		v.web = origin + "/" + v.app.ID + "/" + entry
	}
	if v.app.Mode == CanvasLoopback {
		return v.web, nil
	}
	return contentScheme + "/" + v.instance + "/" + entry, nil
}

// A canvasServer serves canvases at a loopback address. Like a development server, it
// answers every local connection.
type canvasServer struct {
	origin string
	server *http.Server
}

// canvasOriginLocked returns the origin of the loopback server, which the first
// call starts.
func (vs *canvasTable) canvasOriginLocked() (string, error) {
	h := vs.host
	if vs.server != nil {
		return vs.server.origin, nil
	}
	if h.closed {
		return "", errHostClosed
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("serve canvases: %w", err)
	}
	mux := http.NewServeMux()
	for _, app := range h.cfg.Canvases {
		if app.Mode == CanvasLoopback || h.dialect.registers() {
			mux.Handle("GET /"+app.ID+"/", http.StripPrefix("/"+app.ID, app.handler()))
		}
	}
	vs.server = &canvasServer{
		origin: "http://" + l.Addr().String(),
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second},
	}
	server := vs.server.server
	h.goLocked(func() { _ = server.Serve(l) })
	return vs.server.origin, nil
}

func (app *Canvas) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := canvasFileName(strings.TrimPrefix(r.URL.EscapedPath(), "/"))
		if !ok {
			http.NotFound(w, r)
			return
		}
		data, err := fs.ReadFile(app.Files, name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", contentType(name))
		_, _ = w.Write(data)
	})
}

// noteActions declares the agent's actions on the host's canvases.
var noteActions = json.RawMessage(`[{"name":"add","description":"Adds a note.",` +
	`"inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}},` +
	`{"name":"clear","description":"Removes all notes."}]`)

// maxNotes bounds the notes in an instance.
const maxNotes = 100

// answerLocked handles a message of a view. It answers {type: "ping"} and {type:
// "list"}. {type: "add", text} and {type: "clear"} change the notes, and all views are
// notified. Any other message is echoed.
func (v *canvas) answerLocked(payload json.RawMessage) {
	var said struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	_ = json.Unmarshal(payload, &said) // a non-object has no type
	switch said.Type {
	case "ping":
		v.sendLocked(map[string]any{"type": "pong", "instanceId": v.instance, "ping": payload})
	case "list":
		v.tellNotesLocked()
	case "add", "clear":
		v.changeNotesLocked(said.Type, said.Text)
	default:
		v.sendLocked(map[string]any{"type": "echo", "payload": payload})
	}
}

func (v *canvas) changeNotesLocked(how, text string) {
	if how == "clear" {
		v.notes = nil
	} else if len(v.notes) < maxNotes {
		v.notes = append(v.notes, text)
	}
	v.tellNotesLocked()
	_ = v.updateLocked(map[string]any{"status": fmt.Sprintf("%d notes", len(v.notes))}) // a status is always valid
}

func (v *canvas) tellNotesLocked() {
	v.sendLocked(map[string]any{"type": "notes", "notes": append([]string{}, v.notes...)})
}
