package view

import (
	"encoding/json"
	"slices"
	"strings"
)

// maxAsks bounds for how many channels the host is asked after one message.
const maxAsks = 16

// An Ask is a subscribe that the host-agent sends on a client's connection, for a channel
// to which the client is subscribed: so it changes nothing, and the answer has the
// channel's state. The view reads the answer like those to the client. It is not for the
// client.
type Ask struct {
	Channel string
	Params  []byte
}

// Ask has the host asked for the state of a channel, as far as there is room.
func (r *Reading) Ask(channel string) {
	if len(r.Asks) >= maxAsks || slices.ContainsFunc(r.Asks, func(a Ask) bool { return a.Channel == channel }) {
		return
	}
	r.Asks = append(r.Asks, Ask{channel, PlainSubscribe(channel)})
}

// PlainSubscribe returns the params of a subscribe without options.
func PlainSubscribe(channel string) []byte {
	params, _ := json.Marshal(map[string]string{"channel": channel}) // a text cannot fail
	return params
}

// Untold returns the sessions, chats and changesets with which a client goes on that the
// message does not have the state of: those of a reconnect that is answered with a replay.
func (r *Reading) Untold() (list []string) {
	if !r.Accepted || r.Call.Method != "reconnect" || r.Anew {
		return nil
	}
	for _, channel := range r.Granted {
		if !slices.Contains(r.Told, channel) && !hasOtherState(channel) {
			list = append(list, channel)
		}
	}
	return list
}

// otherState are the schemes of channels that are no session, chat or changeset. These
// have schemes of their providers.
var otherState = []string{"ahp-root", "ahp-canvas", "ahp-resource-watch", "ahp-tcp", "ahp-otlp", "ahp-automations", "mcp"}

func hasOtherState(channel string) bool {
	scheme, _, _ := strings.Cut(channel, ":")
	return slices.Contains(otherState, scheme) || strings.HasSuffix(scheme, "-terminal")
}
