package view

import (
	"slices"
	"strings"

	"ahprelay/ahp"
)

// A Canvas describes a canvas the host has opened.
type Canvas struct {
	Instance string
	Hosted   bool // provided by the host, not by a client

	// The content's location according to the host, or "".
	URL, ContentURI string

	Closed bool // no longer open

	when stamp
}

// Canvas returns the known facts about a canvas.
func (h *Host) Canvas(channel string) (Canvas, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.canvases.Get(channel)
	if o, listed := h.owned.Get(h.key(channel)); listed {
		refs := slices.DeleteFunc(slices.Clone(o.links), func(l link) bool { return l.thing != CanvasRef })
		c.Closed = len(refs) > 0
		for i := range refs { // a canvas is open if a list contains it, or if its own state is newer than the list
			holds, said := h.holdsLocked(h.key(channel), &refs[i])
			c.Closed = c.Closed && !holds && c.when.before(said)
		}
	}
	return c, ok
}

// canvasLocked records a canvas's state, or a change.
func (h *Host) canvasLocked(f *Fact) {
	c, known := h.canvases.Get(f.Of)
	if f.when.before(c.when) {
		return
	}
	m := [...]ahp.Member{{Name: "url"}, {Name: "contentUri"}, {Name: "instanceId"}, {Name: "provider"}, {Name: "extensionId"}, {Name: "identity"}}
	if ahp.Members(f.Raw, m[:]) != nil {
		h.canvases.Remove(f.Of)
		return
	}
	switch f.Kind {
	case CanvasIs:
		c = Canvas{}
		if c.Instance, _ = ahp.Text(m[2].Raw); c.Instance == "" {
			c.Instance = ahp.TextOf(m[5].Raw, "instanceId")
		}
		// Before canvases were registered, each named its provider. Since then, the
		// host's extensions provide them.
		extension, _ := ahp.Text(m[4].Raw)
		c.Hosted = ahp.TextOf(m[3].Raw, "kind") == "server" || ahp.IsNone(m[3].Raw) && extension != ""
	case CanvasSource:
		if !known {
			c.Instance, c.Hosted = f.Of[strings.LastIndexAny(f.Of, ":/")+1:], true
		}
	}
	c.when = f.when
	if m[0].Raw != nil {
		c.URL, _ = ahp.Text(m[0].Raw)
	}
	if m[1].Raw != nil {
		c.ContentURI, _ = ahp.Text(m[1].Raw)
	}
	h.canvases.Add(f.Of, c)
	if c.Instance != "" {
		h.linkLocked(contentScheme+"/"+c.Instance, link{of: f.Of, thing: Content, when: f.when})
	}
}
