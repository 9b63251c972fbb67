package view

import (
	"encoding/json"
	"slices"
	"strings"
)

// maxAsks bounds the Asks caused by one message.
const maxAsks = 16

// An Ask is a subscribe that the host-agent sends on a client's connection to learn a
// channel's state. The client is already subscribed to the channel, so the subscribe
// changes nothing. The view reads the response like one for the client, and the client
// does not get it.
type Ask struct {
	Channel string
	Params  []byte
}

// Ask adds a request for a channel's state, unless there are maxAsks already.
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

// Unstated returns the client's sessions, chats and changesets whose state is not in
// this message. There are some after a reconnect with a replay.
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

// otherState lists the schemes of channels other than sessions, chats and changesets.
// The schemes of sessions, chats and changesets depend on their providers.
var otherState = []string{"ahp-root", "ahp-canvas", "ahp-resource-watch", "ahp-tcp", "ahp-otlp", "ahp-automations", "mcp"}

func hasOtherState(channel string) bool {
	scheme, _, _ := strings.Cut(channel, ":")
	return slices.Contains(otherState, scheme) || strings.HasSuffix(scheme, "-terminal")
}
