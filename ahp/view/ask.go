package view

import (
	"encoding/json"
	"slices"
	"strings"
)

// maxAsks bounds a message's Asks.
const maxAsks = 16

// An Ask is a subscribe the host-agent sends on a client's connection, for a channel
// to which the client is subscribed. It therefore changes nothing, and its response
// has the channel's state. The view reads the response like the client's own. The
// client does not get it.
type Ask struct {
	Channel string
	Params  []byte
}

// Ask adds a request for a channel's state, as far as there is room.
func (r *Reading) Ask(channel string) {
	if len(r.Asks) >= maxAsks || slices.ContainsFunc(r.Asks, func(a Ask) bool { return a.Channel == channel }) {
		return
	}
	r.Asks = append(r.Asks, Ask{channel, PlainSubscribe(channel)})
}

// PlainSubscribe returns the params of a subscribe without options.
func PlainSubscribe(channel string) []byte {
	params, _ := json.Marshal(map[string]string{"channel": channel}) // never fails for strings
	return params
}

// Unstated returns the client's sessions, chats and changesets without a state in this
// message: those from a reconnect with a replay.
func (r *Reading) Unstated() (list []string) {
	if !r.Accepted || r.Call.Method != "reconnect" || r.Anew {
		return nil
	}
	for _, channel := range r.Granted {
		if !slices.Contains(r.Stated, channel) && !hasOtherState(channel) {
			list = append(list, channel)
		}
	}
	return list
}

// otherState are the schemes of channels other than sessions, chats and changesets.
// Those have their providers' schemes.
var otherState = []string{"ahp-root", "ahp-canvas", "ahp-resource-watch", "ahp-tcp", "ahp-otlp", "ahp-automations", "mcp"}

func hasOtherState(channel string) bool {
	scheme, _, _ := strings.Cut(channel, ":")
	return slices.Contains(otherState, scheme) || strings.HasSuffix(scheme, "-terminal")
}
