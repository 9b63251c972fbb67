package agenthost

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"ahprelay/ahp"
)

// Constants for the host's own canvas provider.
const (
	ownExtension     = "refhost.canvases"
	ownExtensionName = "Reference canvases"
)

// maxCanvases bounds the open canvases.
const maxCanvases = 256

// providerPatience bounds the wait for a client that provides a canvas. The client
// may have to ask its user.
const providerPatience = 2 * time.Minute

// A canvasDeclaration is a canvas that a provider offers to the agent.
type canvasDeclaration struct {
	ExtensionID   string          `json:"extensionId"`
	ExtensionName string          `json:"extensionName,omitempty"`
	CanvasID      string          `json:"canvasId"`
	DisplayName   string          `json:"displayName"`
	Description   string          `json:"description"`
	InputSchema   json.RawMessage `json:"inputSchema,omitempty"`
	Actions       json.RawMessage `json:"actions,omitempty"`
	Source        canvasSource    `json:"source"`
}

// An activeClient is a client that contributes canvases to a session.
type activeClient struct {
	id       string
	entry    json.RawMessage // the client's own JSON
	declared []canvasDeclaration
	away     bool // the client has no connection now
}

// declarations returns the canvases of all connected providers.
func (s *session) declarations() []canvasDeclaration {
	all := []canvasDeclaration{}
	for _, app := range s.host.cfg.Canvases {
		all = append(all, canvasDeclaration{
			ExtensionID: ownExtension, ExtensionName: ownExtensionName,
			CanvasID: app.ID, DisplayName: "Notes", Description: "Keeps notes. Content by " + string(app.Mode) + ".",
			Actions: noteActions, Source: canvasSource{Kind: "server"},
		})
	}
	for _, ac := range s.clients.all() {
		if !ac.away {
			all = append(all, ac.declared...)
		}
	}
	return all
}

func (s *session) canvasesChangedLocked() {
	if !s.host.dialect.seeds() {
		return
	}
	s.host.emitLocked(s.uri, struct {
		Type     string              `json:"type"`
		Canvases []canvasDeclaration `json:"canvases"`
	}{"session/canvasesChanged", s.declarations()})
}

// activeClientLocked handles session/activeClientChanged and its successors
// session/activeClientSet and …Removed. A client may describe only itself.
func (s *session) activeClientLocked(c *conn, env envelope) {
	var a struct {
		ActiveClient json.RawMessage `json:"activeClient"`
	}
	var entry struct {
		Providers []canvasDeclaration `json:"canvasProviders"`
	}
	if json.Unmarshal(env.action, &a) != nil {
		return
	}
	id := c.client.id
	s.host.publishLocked(env, nil)
	had, _ := s.clients.get(id)
	s.clients.remove(id)
	if ahp.IsObject(a.ActiveClient) && json.Unmarshal(a.ActiveClient, &entry) == nil {
		ac := &activeClient{id: id, entry: a.ActiveClient}
		for _, d := range entry.Providers {
			d.ExtensionID, d.ExtensionName, d.Source = "client:"+id, "", canvasSource{"client", id}
			if d.CanvasID != "" && c.offer.seeds() {
				ac.declared = append(ac.declared, d)
			}
		}
		s.clients.add(id, ac)
		s.boundClientsLocked()
	}
	if now, _ := s.clients.get(id); had != nil && len(had.declared) > 0 || now != nil && len(now.declared) > 0 {
		s.canvasesChangedLocked()
		s.followProviderLocked(id)
	}
}

// maxActiveClients bounds the clients that a session keeps, unless more are connected.
const maxActiveClients = 64

// boundClientsLocked removes the clients beyond the bound that have been absent, the oldest first. A client that is
// loaded again often has a new name.
func (s *session) boundClientsLocked() {
	for _, ac := range s.clients.all() {
		if len(s.clients.keys) <= maxActiveClients {
			return
		}
		if ac.away {
			dropClientLocked(s, ac.id)
		}
	}
}

// dropClientLocked removes a client's contributions, and publishes that.
func dropClientLocked(s *session, id string) {
	s.clients.remove(id)
	s.host.emitLocked(s.uri, struct {
		Type     string `json:"type"`
		ClientID string `json:"clientId"`
	}{"session/activeClientRemoved", id})
}

func (s *session) activeClients() []json.RawMessage {
	entries := []json.RawMessage{}
	for _, ac := range s.clients.all() {
		entries = append(entries, ac.entry)
	}
	return entries
}

// declares reports whether a client currently provides the canvas.
func (s *session) declares(clientID, canvasID string) bool {
	ac, ok := s.clients.get(clientID)
	return ok && !ac.away && slices.ContainsFunc(ac.declared, func(d canvasDeclaration) bool { return d.CanvasID == canvasID })
}

// followProviderLocked marks a client's canvases as stale if the client no longer
// provides them. It opens them again if the client provides them again.
func (s *session) followProviderLocked(clientID string) {
	for _, v := range s.canvases() {
		if v.declared.Source.ClientID != clientID {
			continue
		}
		switch there := s.declares(clientID, v.declared.CanvasID); {
		case !there && !v.stale:
			_ = v.updateLocked(map[string]any{"availability": "stale"}) // fails only for a malformed update
		case there && v.stale:
			s.host.goLocked(func() { s.host.canvases.reopen(v) })
		}
	}
}

// providerLeftLocked records that a client's last connection has ended.
func (vs *canvasTable) providerLeftLocked(clientID string) {
	vs.providerIsLocked(clientID, func(ac *activeClient) { ac.away = true })
}

// providerBack restores the contributions of a client that has reconnected.
// The host calls providerBack after its answer to reconnect.
func (vs *canvasTable) providerBack(clientID string) {
	h := vs.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if cl := h.clients[clientID]; cl != nil && cl.newest() != nil {
		vs.providerIsLocked(clientID, func(ac *activeClient) { ac.away = false })
	}
}

func (vs *canvasTable) providerIsLocked(clientID string, change func(*activeClient)) {
	for _, s := range vs.host.sessions.all() {
		ac, ok := s.clients.get(clientID)
		if !ok {
			continue
		}
		before := ac.away
		if change(ac); ac.away != before && len(ac.declared) > 0 {
			s.canvasesChangedLocked()
			s.followProviderLocked(clientID)
		}
	}
}

// forgetProviderLocked removes the contributions that a client made before its new
// initialize.
func (vs *canvasTable) forgetProviderLocked(clientID string) {
	for _, s := range vs.host.sessions.all() {
		ac, ok := s.clients.get(clientID)
		if !ok {
			continue
		}
		dropClientLocked(s, clientID)
		if len(ac.declared) > 0 && !ac.away {
			s.canvasesChangedLocked()
			s.followProviderLocked(clientID)
		}
	}
}

// Params and results of requests to a client that provides a canvas.

type canvasCall struct {
	Channel     string          `json:"channel"` // the session
	CanvasID    string          `json:"canvasId"`
	ExtensionID string          `json:"extensionId"`
	InstanceID  string          `json:"instanceId"`
	ActionName  string          `json:"actionName,omitempty"`
	Input       json.RawMessage `json:"input,omitempty"`
}

type canvasOpened struct {
	URL    string `json:"url"`
	Title  string `json:"title"`
	Status string `json:"status"`
}

func (v *canvas) call() canvasCall {
	return canvasCall{
		Channel: v.session.uri, CanvasID: v.declared.CanvasID, ExtensionID: v.declared.ExtensionID, InstanceID: v.instance,
	}
}

// askProvider sends a request to the client that provides a canvas.
func (vs *canvasTable) askProvider(clientID, method string, params canvasCall) (json.RawMessage, error) {
	h := vs.host
	call, err := h.startCall(clientID, method, params)
	if err != nil {
		return nil, providerError("canvas_provider_unavailable", err.Error())
	}
	select {
	case reply := <-call.reply:
		return reply.result, reply.err
	case <-time.After(providerPatience):
		return nil, providerError("canvas_provider_timeout", "The provider does not answer")
	case <-h.done:
		return nil, errHostClosed
	}
}

// providerError returns the error that an agent gets for a failed provider.
func providerError(code, text string) error {
	return &rpcError{Code: ahp.CodeCanvasProviderError, Message: text, Data: struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, text}}
}

// OpenCanvas opens a canvas like the agent would, waits for its provider, and returns
// the canvas's channel. canvasID is a canvasId, or <extensionId>/<canvasId>.
func (h *Host) OpenCanvas(session, canvasID string, input any) (string, error) {
	v, err := h.canvases.newCanvas(session, canvasID, input)
	if err != nil {
		return "", err
	}
	opened, err := h.canvases.openAtClient(v)
	if err != nil {
		return "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	v.title, v.status = opened.Title, opened.Status
	v.setURL(opened.URL)
	if err := h.canvases.addCanvasLocked(v); err != nil {
		return "", err
	}
	v.session.openCanvasesChangedLocked()
	return v.channel, nil
}

// Canvases returns the channels of a session's open canvases in opening order.
func (h *Host) Canvases(session string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.sessions.get(session)
	if !ok {
		return nil
	}
	var channels []string
	for _, v := range s.canvases() {
		channels = append(channels, v.channel)
	}
	return channels
}

// newCanvas returns an unopened canvas.
func (vs *canvasTable) newCanvas(session, canvasID string, input any) (*canvas, error) {
	h := vs.host
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.sessions.get(session)
	if !ok {
		return nil, h.sessions.noSessionLocked(session)
	}
	return vs.newCanvasLocked(s, canvasID, input)
}

func (vs *canvasTable) newCanvasLocked(s *session, canvasID string, input any) (*canvas, error) {
	declared := s.declarations()
	i := slices.IndexFunc(declared, func(d canvasDeclaration) bool {
		return canvasID == d.CanvasID || canvasID == d.ExtensionID+"/"+d.CanvasID
	})
	if i < 0 {
		return nil, fail(ahp.CodeNotFound, "No such canvas: %s", canvasID)
	}
	vs.count++
	v := &canvas{session: s, declared: declared[i], instance: fmt.Sprintf("%s-%d", declared[i].CanvasID, vs.count)}
	if input != nil {
		v.input = encode(input)
	}
	if v.declared.Source.Kind == "server" {
		v.app = &vs.host.cfg.Canvases[i] // the host's own canvases are the first declarations
	}
	return v, nil
}

// openAtClient asks the client that provides the canvas to open it. It does nothing
// for the host's own canvases.
func (vs *canvasTable) openAtClient(v *canvas) (opened canvasOpened, err error) {
	if v.app != nil {
		return opened, nil
	}
	params := v.call()
	params.Input = v.input
	result, err := vs.askProvider(v.declared.Source.ClientID, "canvasOpen", params)
	if err != nil {
		return opened, err
	}
	if json.Unmarshal(result, &opened) != nil {
		return opened, providerError("canvas_bad_result", "The provider's result is malformed")
	}
	return opened, nil
}

// addCanvasLocked opens a canvas whose provider is ready, without publishing it.
func (vs *canvasTable) addCanvasLocked(v *canvas) (err error) {
	h := vs.host
	if current, _ := h.sessions.get(v.session.uri); current != v.session {
		return h.sessions.noSessionLocked(v.session.uri)
	}
	if len(vs.keys) >= maxCanvases {
		return fail(ahp.CodeInternalError, "More than %d canvases", maxCanvases)
	}
	if v.app != nil {
		v.title = v.declared.DisplayName
		url, err := v.openURLLocked()
		if err != nil {
			return err
		}
		v.setURL(url)
	}
	v.channel = canvasPrefix + h.cfg.NewID()
	vs.add(v.channel, v)
	return nil
}

// reopen opens a stale canvas again at its client.
func (vs *canvasTable) reopen(v *canvas) {
	h := vs.host
	opened, err := vs.openAtClient(v)
	if err != nil {
		h.log.Info("stale canvas not reopened by its client", "instance", v.instance, "error", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if current, _ := vs.get(v.channel); current != v || !v.stale || !v.session.declares(v.declared.Source.ClientID, v.declared.CanvasID) {
		return
	}
	update := map[string]any{"availability": "ready"}
	for name, value := range map[string]string{"url": opened.URL, "title": opened.Title, "status": opened.Status} {
		if value != "" {
			update[name] = value
		}
	}
	_ = v.updateLocked(update) // fails only for a malformed update
}

// withCanvas calls f with the host's lock held if the canvas is open.
func (vs *canvasTable) withCanvas(channel string, f func(*canvas) error) error {
	h := vs.host
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := vs.get(channel)
	if !ok {
		return fail(ahp.CodeNotFound, "Canvas not open: %s", channel)
	}
	return f(v)
}

// UpdateCanvas publishes canvas/updated with the given title, status, url and
// availability; nil clears a value. With an empty update, the host's own
// provider moves its content to a new address.
func (h *Host) UpdateCanvas(channel string, update map[string]any) error {
	return h.canvases.withCanvas(channel, func(v *canvas) error {
		if len(update) > 0 || v.app == nil {
			return v.updateLocked(update)
		}
		url, err := v.openURLLocked()
		if err != nil {
			return err
		}
		return v.updateLocked(map[string]any{"url": url, "status": fmt.Sprintf("Round %d", v.round)})
	})
}

// StaleCanvas simulates that the canvas's provider is lost. The host's own loopback
// content then has no address.
func (h *Host) StaleCanvas(channel string) error {
	return h.canvases.withCanvas(channel, func(v *canvas) error {
		update := map[string]any{"availability": "stale"}
		if v.app != nil && v.app.Mode == CanvasLoopback {
			update["url"] = nil
		}
		return v.updateLocked(update)
	})
}

// ReadyCanvas simulates that the provider returns: the canvas opens again.
func (h *Host) ReadyCanvas(channel string) error {
	return h.canvases.withCanvas(channel, func(v *canvas) error {
		update := map[string]any{"availability": "ready"}
		if v.app != nil {
			url, err := v.openURLLocked()
			if err != nil {
				return err
			}
			update["url"] = url
		}
		return v.updateLocked(update)
	})
}

// MessageCanvas sends a message of the provider to the canvas's views.
func (h *Host) MessageCanvas(channel string, payload any) error {
	return h.canvases.withCanvas(channel, func(v *canvas) error {
		v.sendLocked(payload)
		return nil
	})
}

// InvokeCanvas invokes an action of a canvas like the agent would, and returns the
// provider's result.
func (h *Host) InvokeCanvas(channel, action string, input any) (value json.RawMessage, err error) {
	var params canvasCall
	var clientID string
	err = h.canvases.withCanvas(channel, func(v *canvas) error {
		params, clientID = v.call(), v.declared.Source.ClientID
		switch {
		case v.stale:
			return providerError("canvas_provider_unavailable", "The canvas is stale")
		case v.app != nil && action != "add" && action != "clear":
			return providerError("canvas_action_no_handler", "No such action: "+action)
		case v.app != nil:
			var given struct {
				Text string `json:"text"`
			}
			_ = json.Unmarshal(encode(input), &given) // a non-object has no text
			v.changeNotesLocked(action, given.Text)
			value = encode(map[string]int{"notes": len(v.notes)})
		}
		return nil
	})
	if err != nil || clientID == "" {
		return value, err
	}
	params.ActionName = action
	if input != nil {
		params.Input = encode(input)
	}
	result, err := h.canvases.askProvider(clientID, "canvasInvokeAction", params)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(result, &answer) != nil {
		return nil, providerError("canvas_bad_result", "The provider's result is malformed")
	}
	return answer.Value, nil
}

// CloseCanvas closes a canvas. The provider is informed first, and cannot prevent it.
func (h *Host) CloseCanvas(channel string) error {
	var params canvasCall
	var clientID string
	err := h.canvases.withCanvas(channel, func(v *canvas) error {
		params = v.call()
		if !v.stale {
			clientID = v.declared.Source.ClientID
		}
		return nil
	})
	if err != nil {
		return err
	}
	if clientID != "" {
		_, err = h.canvases.askProvider(clientID, "canvasClose", params)
	}
	_ = h.canvases.withCanvas(channel, func(v *canvas) error { // the canvas may be closed already
		v.removeLocked()
		return nil
	})
	return err
}

// refuseProviderCallLocked refuses a client's canvasOpen, canvasInvokeAction and
// canvasClose, which only the host may send.
func (*canvasTable) refuseProviderCallLocked(c *conn, _ json.RawMessage) (any, error) {
	if !c.offer.seeds() {
		return nil, methodNotFound("canvasOpen, canvasInvokeAction, canvasClose")
	}
	return nil, fail(ahp.CodePermissionDenied, "Canvases are opened, driven and closed by the host")
}
