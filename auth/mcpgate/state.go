package mcpgate

import (
	"encoding/json"
	"maps"
	"slices"
	"unicode/utf8"
)

// A State is a gate's state, as shown to the host's operator.
type State struct {
	Initialized  bool            `json:"initialized"` // the host has accepted initialize or reconnect
	Mode         string          `json:"mode"`        // soft or strict
	Capabilities json.RawMessage `json:"clientCapabilities,omitempty"`
	From         string          `json:"clientCapabilitiesFrom,omitempty"` // the source; "" if unknown
	Channels     []ChannelState  `json:"channels,omitempty"`
	Omitted      int             `json:"channelsOmitted,omitempty"` // channels that did not fit
}

// A ChannelState is a channel's state.
type ChannelState struct {
	Channel     string   `json:"channel"`
	State       string   `json:"state"`             // ready, or the reason why not
	Methods     []string `json:"methods,omitempty"` // the served methods
	ListChanged []string `json:"listChanged,omitempty"`
	Open        bool     `json:"open,omitempty"` // further methods pass: some capabilities are unknown
}

const (
	// maxChannels is the largest size of the channels in a State, in bytes of JSON.
	maxChannels = 16 << 10

	// stateCost is the largest size of a channel without its URI, if all characters in
	// its state's name must be escaped.
	stateCost = 320 + 6*64
)

// lengthAsJSON returns an upper bound for a text's length in JSON, in bytes.
func lengthAsJSON(text string) (n int) {
	for _, r := range text {
		switch {
		case r < ' ', r == '\u2028', r == '\u2029':
			n += 6
		case r == '"', r == '\\':
			n += 2
		default:
			n += utf8.RuneLen(r)
		}
	}
	return n
}

// State returns the gate's state. As JSON it is smaller than 24 KiB, if <, > and & are
// not escaped. Channels that do not fit are only counted, in Omitted.
func (g *Gate) State() State {
	g.register.mu.Lock()
	defer g.register.mu.Unlock()
	s := State{Initialized: g.greeted, Mode: "soft", Capabilities: g.client.raw, From: g.client.from}
	if g.cfg.Strict {
		s.Mode = "strict"
	}
	room := maxChannels
	for _, uri := range slices.Sorted(maps.Keys(g.register.channels)) {
		if room -= lengthAsJSON(uri) + stateCost; room < 0 {
			s.Omitted++
			continue
		}
		s.Channels = append(s.Channels, g.channelState(uri))
	}
	return s
}

func (g *Gate) channelState(uri string) ChannelState {
	ch := g.register.channels[uri]
	sets, ready := g.served(ch)
	s := ChannelState{Channel: uri, State: "ready"}
	switch {
	case len(ch.named) == 0:
		s.State = "gone"
	case ready:
	case ch.named[0].off:
		s.State = "disabled"
	default:
		s.State = ch.named[0].state
	}
	if g.cfg.Strict && g.client.lacks(mcpApps) {
		sets = none
	}
	for _, m := range methods {
		if sets&servedBy[m] != 0 {
			s.Methods = append(s.Methods, m)
		}
	}
	if sets&toolsChanged != 0 {
		s.ListChanged = append(s.ListChanged, "tools")
	}
	if sets&resourcesChanged != 0 {
		s.ListChanged = append(s.ListChanged, "resources")
	}
	s.Open = sets&(laterFlag|laterSet|partial) != 0
	return s
}
