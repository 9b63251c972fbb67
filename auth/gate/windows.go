package gate

import (
	"bytes"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Windows is the gate that declines windowed delivery for its clients: since AHP
// 1.1 they may ask with flowControl to get a channel in pieces (channel/frame), for
// which they give credit, and hosts may decline. It takes flowControl out of
// subscribe, and windows out of reconnect, before the host sees it; the host then
// delivers as always. Raw connections (ahp-tcp:), for which there is no other
// delivery, keep it.
//
// Pieces that are alike would be shared like other messages, as long as clients ask
// for the same: what decides is what they cost. To 50 viewers of one chat, 200
// actions of 250 B take 0.14 MB of the host's line without windows and 0.17 with
// them, over plain TCP (compressed, 0.05 either way), 0.20 s and 0.27 of the
// host-agent's processor, and 0.17 s and 0.24 of the host's (make bench
// ARGS=windows). A message in pieces cannot be changed on its way either, so that no
// address in it would be minted and nothing left out for who may not see all of it.
// And slow clients have credit of their own between relay and host-agent, which
// holds the host back.
//
// What the client sends passes unchanged otherwise, also if it can be read in more
// than one way.
type Windows struct{}

// windowed are the members with which requests ask for windows.
var windowed = map[string]string{"subscribe": "flowControl", "reconnect": "windows"}

// tcpScheme begins the channels of raw connections.
const tcpScheme = "ahp-tcp:"

// FromClient implements [Gate].
func (Windows) FromClient(message []byte, env *ahp.Envelope) Decision {
	name := windowed[string(env.Method)]
	if name == "" || env.Kind != ahp.Request || bytes.HasPrefix(env.Channel, []byte(tcpScheme)) {
		return Decision{}
	}
	params, ok := ahp.MemberOf(message, "params")
	if !ok || !strings.Contains(string(params.Raw), name) && !strings.Contains(string(params.Raw), `\u`) {
		return Decision{}
	}
	list, err := ahp.AllMembers(params.Raw)
	if err != nil {
		return Decision{}
	}
	var e view.Editor
	e.Keep(places(list, params), func(i int) bool { return list[i].Name != name })
	if !e.Changes() {
		return Decision{}
	}
	return Decision{Replace, e.Apply(message)}
}

// FromHost implements [Gate].
func (Windows) FromHost([]byte, *ahp.Envelope, *view.Reading) Decision { return Decision{} }

// places returns where the members of an object stand, with their keys, in the
// message that the object is a member of.
func places(list []ahp.Member, object ahp.Member) []view.Place {
	out := make([]view.Place, len(list))
	at := 1 // behind the brace, or a comma
	for i := range list {
		end := list[i].Offset() + len(list[i].Raw)
		out[i] = view.Place{At: object.Offset() + at, End: object.Offset() + end}
		at = end + bytes.IndexByte(object.Raw[end:], ',') + 1
	}
	return out
}
