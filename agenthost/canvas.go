package agenthost

import (
	"encoding/json"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// canvasPrefix begins the channel of each open canvas. A new ID follows, not the
// canvas's instance ID.
const canvasPrefix = "ahp-canvas:/"

// A canvas is an open instance: an interface that the agent has opened and that
// clients show. The host's lock guards its state.
type canvas struct {
	session  *session
	channel  string
	declared canvasDeclaration // the provider's declaration when the canvas was opened
	instance string
	input    json.RawMessage
	title    string
	status   string
	url      string // address for clients before AHP 0.10 with the capability canvas
	web      string // address for clients of AHP since 0.10: http:, https: or empty
	stale    bool

	// Set only for the host's own canvases.
	app   *Canvas
	notes []string
	round int // number of openings, and of changes by the provider
}

type canvasState struct {
	InstanceID    string          `json:"instanceId"`
	CanvasID      string          `json:"canvasId"`
	ExtensionID   string          `json:"extensionId"`
	ExtensionName string          `json:"extensionName,omitempty"`
	DisplayName   string          `json:"displayName,omitempty"`
	Input         json.RawMessage `json:"input,omitempty"`
	Title         string          `json:"title,omitempty"`
	Status        string          `json:"status,omitempty"`
	URL           string          `json:"url,omitempty"`
	Availability  string          `json:"availability"`
	Provider      canvasSource    `json:"provider"`
}

// A registeredCanvas is a canvas's state since 0.10.
type registeredCanvas struct {
	InstanceID    string `json:"instanceId"`
	ExtensionID   string `json:"extensionId"`
	ExtensionName string `json:"extensionName,omitempty"`
	CanvasID      string `json:"canvasId"`
	Title         string `json:"title,omitempty"`
	Status        string `json:"status,omitempty"`
	URL           string `json:"url,omitempty"`
}

// A canvasResource is an open canvas in a chat's state since 0.10.
type canvasResource struct {
	Resource string `json:"resource"`
}

// A canvasRef is an entry for an open canvas in the session's state.
type canvasRef struct {
	InstanceID    string `json:"instanceId"`
	Channel       string `json:"channel"`
	CanvasID      string `json:"canvasId"`
	ExtensionID   string `json:"extensionId"`
	ExtensionName string `json:"extensionName,omitempty"`
	Title         string `json:"title,omitempty"`
	Availability  string `json:"availability"`
}

// A canvasSource names the provider of a canvas: the host (kind server) or a client
// (kind client).
type canvasSource struct {
	Kind     string `json:"kind"`
	ClientID string `json:"clientId,omitempty"`
}

type canvasMessageAction struct {
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

func (v *canvas) availability() string {
	if v.stale {
		return "stale"
	}
	return "ready"
}

func (v *canvas) state() canvasState {
	return canvasState{
		InstanceID: v.instance, CanvasID: v.declared.CanvasID,
		ExtensionID: v.declared.ExtensionID, ExtensionName: v.declared.ExtensionName, DisplayName: v.declared.DisplayName,
		Input: v.input, Title: v.title, Status: v.status, URL: v.url,
		Availability: v.availability(), Provider: v.declared.Source,
	}
}

func (v *canvas) registered() registeredCanvas {
	state := registeredCanvas{
		InstanceID: v.instance, ExtensionID: v.declared.ExtensionID, ExtensionName: v.declared.ExtensionName,
		CanvasID: v.declared.CanvasID, Title: v.title, Status: v.status, URL: v.web,
	}
	if v.stale {
		state.URL = ""
	}
	return state
}

// setURL sets the canvas's address. Clients since 0.10 get only http: and https:
// addresses; for a canvas of the host, they keep the address that openURLLocked has
// set.
func (v *canvas) setURL(url string) {
	v.url = url
	switch {
	case url == "", strings.HasPrefix(url, "http://"), strings.HasPrefix(url, "https://"):
		v.web = url
	case v.app == nil:
		v.web = ""
	}
}

func (v *canvas) ref() canvasRef {
	return canvasRef{
		InstanceID: v.instance, Channel: v.channel, CanvasID: v.declared.CanvasID,
		ExtensionID: v.declared.ExtensionID, ExtensionName: v.declared.ExtensionName,
		Title: v.title, Availability: v.availability(),
	}
}

// refs returns the session's open canvases in opening order.
func (s *session) refs() []canvasRef {
	refs := []canvasRef{}
	for _, v := range s.canvases() {
		refs = append(refs, v.ref())
	}
	return refs
}

func (s *session) canvases() []*canvas {
	return slices.DeleteFunc(s.host.canvases.all(), func(v *canvas) bool { return v.session != s })
}

// resources returns the session's open canvases, as listed in its default chat.
func (s *session) resources() []canvasResource {
	resources := []canvasResource{}
	for _, v := range s.canvases() {
		resources = append(resources, canvasResource{v.channel})
	}
	return resources
}

// openCanvasesChangedLocked publishes the list of open canvases in each form that
// clients of this host may need.
func (s *session) openCanvasesChangedLocked() {
	s.refsChangedLocked()
	if s.host.dialect.registers() {
		s.host.emitLocked(s.chat.uri, struct {
			Type     string           `json:"type"`
			Canvases []canvasResource `json:"canvases"`
		}{"chat/canvasesChanged", s.resources()})
	}
}

// refsChangedLocked publishes the list of open canvases, with their titles, in the
// form for clients before 0.10.
func (s *session) refsChangedLocked() {
	if s.host.dialect.seeds() {
		s.host.emitLocked(s.uri, struct {
			Type         string      `json:"type"`
			OpenCanvases []canvasRef `json:"openCanvases"`
		}{"session/openCanvasesChanged", s.refs()})
	}
}

// canvasStateLocked returns an open canvas's state, or an error for a client
// without canvases.
func (vs *canvasTable) canvasStateLocked(uri string, o offer) (any, error) {
	v, ok := vs.get(uri)
	switch {
	case ok && o.registers():
		return v.registered(), nil
	case ok && o.seeds():
		return v.state(), nil
	}
	return nil, fail(ahp.CodeNotFound, "Canvas not open: %s", uri)
}

// updateLocked merges an update into the canvas's state and publishes it. A null clears
// an optional value, and a missing field stays unchanged. If the list of open canvases
// changes, it is published, too.
func (v *canvas) updateLocked(update map[string]any) error {
	before := v.ref()
	for name, value := range update {
		text, isText := value.(string)
		field := map[string]*string{"title": &v.title, "status": &v.status}[name]
		switch {
		case name == "url" && (isText || value == nil):
			v.setURL(text)
		case field != nil && (isText || value == nil):
			*field = text
		case name == "availability" && (text == "stale" || text == "ready"):
			v.stale = text == "stale"
		default:
			return fail(ahp.CodeInvalidParams, "A canvas cannot be updated with %s: %v", name, value)
		}
	}
	fields := message{"type": encode("canvas/updated")}
	for name, value := range update {
		fields[name] = encode(value)
	}
	h := v.session.host
	if h.dialect.seeds() {
		h.publishLocked(envelope{channel: v.channel, action: encode(fields), kind: "canvas/updated"}, nil)
	}
	if h.dialect.registers() {
		h.emitLocked(v.channel, struct {
			Type   string           `json:"type"`
			Canvas registeredCanvas `json:"canvas"`
		}{"canvas/stateChanged", v.registered()})
	}
	if v.ref() != before {
		v.session.refsChangedLocked()
	}
	return nil
}

// sendLocked sends a provider's message to all clients that show the canvas.
func (v *canvas) sendLocked(payload any) {
	v.session.host.emitLocked(v.channel, canvasMessageAction{"canvas/message", encode(payload)})
}

func (v *canvas) removeLocked() {
	v.session.host.canvases.remove(v.channel)
	v.session.openCanvasesChangedLocked()
}

// canvasActionLocked handles a client's action on a canvas.
func (vs *canvasTable) canvasActionLocked(c *conn, env envelope) {
	h := vs.host
	var a struct {
		InstanceID *string         `json:"instanceId"`
		Payload    json.RawMessage `json:"payload"`
	}
	if json.Unmarshal(env.action, &a) != nil {
		return
	}
	v, open := vs.get(env.channel)
	open = open && (a.InstanceID == nil || *a.InstanceID == v.instance)
	renders := c.subs[env.channel] != nil && c.offer.seeds()
	switch {
	case env.kind == "canvas/closeRequested" && !open:
		// The canvas is already closed.
	case env.kind != "canvas/closeRequested" && env.kind != "canvas/message":
		vs.rejectLocked(c, env, "Clients may not dispatch "+env.kind)
	case !open:
		vs.rejectLocked(c, env, "Canvas not open: "+env.channel)
	case !renders:
		vs.rejectLocked(c, env, "Not a renderer of the canvas: "+env.channel)
	case env.kind == "canvas/closeRequested":
		h.publishLocked(env, nil)
		h.goLocked(func() { _ = h.CloseCanvas(env.channel) })
	case a.Payload != nil: // without a payload, the action is malformed
		h.publishLocked(env, nil)
		if v.app != nil && !v.stale {
			v.answerLocked(a.Payload)
		}
	}
}

// rejectLocked sends a rejected action to the client that dispatched it, and to no
// other.
func (vs *canvasTable) rejectLocked(c *conn, env envelope, reason string) {
	h := vs.host
	h.seq++
	env.rejected = reason
	c.queueLocked(notificationFrame("action", env.encode(h.seq)))
}

// maxCanvasPath bounds an escaped path in a content address, in bytes.
const maxCanvasPath = 4096

// contentScheme begins canvas content addresses:
// ahp-canvas-content:/<instanceId>/<path>.
const contentScheme = "ahp-canvas-content:"

type canvasReadParams struct {
	Channel string `json:"channel"`
	URI     string `json:"uri"`
}

type canvasContent struct {
	URI      string  `json:"uri"`
	MIMEType string  `json:"mimeType,omitempty"`
	Text     *string `json:"text,omitempty"`
	Blob     []byte  `json:"blob,omitempty"` // base64
}

// canvasReadResource answers canvasReadResource for content served by the host itself.
func (vs *canvasTable) canvasReadResource(c *conn, raw json.RawMessage) (any, error) {
	app, uri, name, err := vs.admitRead(c, raw)
	if err != nil {
		return nil, err
	}
	content, err := app.read(name, uri)
	if err != nil {
		return nil, err
	}
	return struct {
		Contents []canvasContent `json:"contents"`
	}{[]canvasContent{content}}, nil
}

// admitRead checks that the connection is subscribed to the canvas, and that the
// address belongs to the canvas. It returns the address and the file's name.
func (vs *canvasTable) admitRead(c *conn, raw json.RawMessage) (app *Canvas, uri, name string, err error) {
	h := vs.host
	if c.offer.registers() || !slices.ContainsFunc(h.cfg.Canvases, func(app Canvas) bool { return app.Mode == CanvasChannel }) {
		return nil, "", "", methodNotFound("canvasReadResource")
	}
	params, err := decodeParams[canvasReadParams](raw)
	if err != nil {
		return nil, "", "", err
	}
	instance, name, err := parseContentURI(params.URI)
	if err != nil {
		return nil, "", "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := vs.get(params.Channel)
	switch {
	case !ok:
		err = fail(ahp.CodeNotFound, "Canvas not open: %s", params.Channel)
	case c.subs[params.Channel] == nil || !c.offer.seeds():
		err = fail(ahp.CodePermissionDenied, "Not a renderer of the canvas: %s", params.Channel)
	case instance != v.instance:
		err = fail(ahp.CodePermissionDenied, "Not content of the canvas %s: %s", v.instance, params.URI)
	case v.app != nil && v.app.Mode == CanvasLoopback:
		err = methodNotFound("canvasReadResource")
	case v.app == nil || v.stale:
		err = fail(ahp.CodeNotFound, "Content not found: %s", params.URI)
	}
	if err != nil {
		return nil, "", "", err
	}
	return v.app, params.URI, name, nil
}

// parseContentURI splits the address of canvas content into the instance and the
// file's path. It decodes the path once, and refuses a path outside of the canvas's
// root.
func parseContentURI(uri string) (instance, name string, err error) {
	rest, ok := strings.CutPrefix(uri, contentScheme+"/")
	if !ok {
		return "", "", fail(ahp.CodeInvalidParams, "Not an address of canvas content: %s", uri)
	}
	rest, _, _ = strings.Cut(rest, "#")
	rest, _, _ = strings.Cut(rest, "?")
	instance, escaped, _ := strings.Cut(rest, "/")
	name, ok = canvasFileName(escaped)
	if !ok || instance == "" {
		return "", "", fail(ahp.CodeInvalidParams, "Not a path of canvas content: %s", uri)
	}
	return instance, name, nil
}
