package agenthost

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// watchPrefix begins the channels of resource watches. The JSON of a watch, which is
// its only state, follows in base64url.
const watchPrefix = "ahp-resource-watch://r/"

type watch struct {
	Root      string `json:"root"`
	Recursive bool   `json:"recursive,omitempty"`
}

func parseWatch(channel string) (watch, bool) {
	var w watch
	encoded, ok := strings.CutPrefix(channel, watchPrefix)
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if !ok || err != nil || json.Unmarshal(raw, &w) != nil {
		return watch{}, false
	}
	return w, w.Root != ""
}

func (w watch) covers(uri string) bool {
	below, ok := strings.CutPrefix(uri, strings.TrimSuffix(w.Root, "/")+"/")
	return uri == w.Root || ok && (w.Recursive || !strings.Contains(below, "/"))
}

type watchParams struct {
	URI       string `json:"uri"`
	Recursive bool   `json:"recursive"`
}

func (rs *resources) createResourceWatchLocked(_ *conn, params watchParams) (any, error) {
	if _, _, err := rs.files.find(params.URI); err != nil {
		return nil, err
	}
	encoded := base64.RawURLEncoding.EncodeToString(encode(watch{params.URI, params.Recursive}))
	return channelParams{watchPrefix + encoded}, nil
}

func watchState(channel string) (any, error) {
	w, ok := parseWatch(channel)
	if !ok {
		return nil, fail(ahp.CodeSessionNotFound, "Resource watch not found: %s", channel)
	}
	return struct {
		Root      string `json:"root"`
		Recursive bool   `json:"recursive"`
	}{w.Root, w.Recursive}, nil
}

type watchChange struct {
	URI  string `json:"uri"`
	Type string `json:"type"`
}

type watchChangedAction struct {
	Type    string `json:"type"`
	Changes struct {
		Items []watchChange `json:"items"`
	} `json:"changes"`
}

// fileChanged publishes a change that a client has made through this host. Other
// changes are not noticed.
func (rs *resources) fileChanged(uri, change string) {
	h := rs.host
	h.mu.Lock()
	defer h.mu.Unlock()
	watched := make(map[string]bool)
	for _, cl := range h.clients {
		if c := cl.newest(); c != nil {
			for channel := range c.subs {
				if w, ok := parseWatch(channel); ok && w.covers(uri) {
					watched[channel] = true
				}
			}
		}
	}
	action := watchChangedAction{Type: "resourceWatch/changed"}
	action.Changes.Items = []watchChange{{uri, change}}
	for _, channel := range slices.Sorted(maps.Keys(watched)) {
		h.emitLocked(channel, action)
	}
}
