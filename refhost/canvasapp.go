package refhost

import (
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

// A Canvas is one that the host's own provider declares in every session.
type Canvas struct {
	// ID is the canvasId. It is no verb of the prompts; see the package
	// documentation.
	ID string

	// Mode says how clients get at the content. Default: [CanvasChannel].
	Mode CanvasMode

	// URL is where the content is, if the host does not serve it itself: on a
	// server of somebody else's. Mode and Files do not matter then.
	URL string

	// Files is the content; index.html is what is shown. Default: an
	// application that keeps notes, and uses whatever applications use.
	Files fs.FS `json:"-"`
}

// A CanvasMode is a way to address the content of a canvas.
type CanvasMode string

const (
	// CanvasChannel addresses content as ahp-canvas-content:/<instanceId>/…,
	// which clients read with canvasReadResource.
	CanvasChannel CanvasMode = "channel"

	// CanvasLoopback addresses it as http://127.0.0.1:<port>/…, at a server of
	// the host's own. canvasReadResource is not served: -32601.
	CanvasLoopback CanvasMode = "loopback"
)

//go:embed all:canvasapp
var canvasAppFiles embed.FS

// canvasVerbs are what a prompt can do with the canvas that is open.
var canvasVerbs = []string{"update", "stale", "ready", "message", "invoke", "close"}

// demoCanvases are those of a demo host.
var demoCanvases = []Canvas{{ID: "notes"}, {ID: "notes-loopback", Mode: CanvasLoopback}}

// checkCanvases returns a checked copy in which nothing is left open.
func checkCanvases(given []Canvas) ([]Canvas, error) {
	app, err := fs.Sub(canvasAppFiles, "canvasapp")
	if err != nil {
		panic(err) // it is embedded
	}
	var checked []Canvas
	for _, v := range given {
		if v.Mode == "" {
			v.Mode = CanvasChannel
		}
		if v.Files == nil {
			v.Files = app
		}
		switch {
		case v.ID == "" || strings.ContainsAny(v.ID, " /") || slices.Contains(canvasVerbs, v.ID):
			return nil, fmt.Errorf("refhost: Config.Canvases has the ID %q", v.ID)
		case slices.ContainsFunc(checked, func(other Canvas) bool { return other.ID == v.ID }):
			return nil, fmt.Errorf("refhost: Config.Canvases has %q twice", v.ID)
		case v.Mode != CanvasChannel && v.Mode != CanvasLoopback:
			return nil, fmt.Errorf("refhost: Config.Canvases has the Mode %q; want %q or %q", v.Mode, CanvasChannel, CanvasLoopback)
		}
		checked = append(checked, v)
	}
	return checked, nil
}

// canvasFileName decodes a path of content, once. It reports false for what
// is no name of a file below the root.
func canvasFileName(escaped string) (string, bool) {
	name, err := url.PathUnescape(escaped)
	if err != nil || len(escaped) > maxCanvasPath || !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\\") {
		return "", false
	}
	if name == "" {
		name = "index.html"
	}
	return name, fs.ValidPath(name) && name != "."
}

// read returns a file of the content, uri being how the client calls it.
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

// openURLLocked returns the address of an instance's content as the seed's
// clients get it, and notes that on the web. Each round has another one, so that
// clients load it anew.
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
		origin, err := h.canvasOriginLocked()
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

// A canvasServer serves the content of loopback canvases, to whoever can
// connect, as servers of development tools do.
type canvasServer struct {
	origin string
	server *http.Server
}

// canvasOriginLocked starts the server, if it does not run yet.
func (h *Host) canvasOriginLocked() (string, error) {
	if h.canvasServer != nil {
		return h.canvasServer.origin, nil
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
	h.canvasServer = &canvasServer{
		origin: "http://" + l.Addr().String(),
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second},
	}
	server := h.canvasServer.server
	h.goLocked(func() { _ = server.Serve(l) })
	return h.canvasServer.origin, nil
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

// noteActions are what the agent can do with a canvas of the host's own.
var noteActions = json.RawMessage(`[{"name":"add","description":"Adds a note.",` +
	`"inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}},` +
	`{"name":"clear","description":"Removes all notes."}]`)

// maxNotes is how many notes an instance keeps.
const maxNotes = 100

// answerLocked handles a message of a view: {type: "ping"} and {type: "list"}
// are answered, {type: "add", text} and {type: "clear"} change the notes,
// which all views are told; anything else comes back.
func (v *canvas) answerLocked(payload json.RawMessage) {
	var said struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	_ = json.Unmarshal(payload, &said) // what is no object has no type
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
	_ = v.updateLocked(map[string]any{"status": fmt.Sprintf("%d notes", len(v.notes))}) // it is valid
}

func (v *canvas) tellNotesLocked() {
	v.sendLocked(map[string]any{"type": "notes", "notes": append([]string{}, v.notes...)})
}
