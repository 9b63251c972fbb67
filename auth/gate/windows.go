package gate

import (
	"bytes"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Windows is the gate that declines windowed delivery. Since AHP 1.1, a client may use
// flowControl to request delivery in frames (channel/frame), for which it grants credit,
// and a host may decline. The gate removes flowControl from subscribe, and windows from
// reconnect, before the host gets the request. The host then delivers messages as usual.
// Raw connections (ahp-tcp:) keep it, because they have no other delivery.
//
// Frames could be shared among clients like other messages, but they cost more: with 50
// viewers, a fifth more bytes on the host's uncompressed connection, and a third more
// processor time at the host-agent (make bench ARGS=windows). Also, a message in frames
// cannot be edited, so addresses would not be replaced and hidden parts would not be
// removed. Windows are not needed against slow clients: the relay grants credit for each
// client, which slows the host down.
//
// The gate changes nothing else, even if a message is ambiguous.
type Windows struct{}

// windowed are the members with which requests ask for windowed delivery.
var windowed = map[string]string{"subscribe": "flowControl", "reconnect": "windows"}

// FromClient implements [Gate].
func (Windows) FromClient(message []byte, env *ahp.Envelope) Decision {
	name := windowed[string(env.Method)]
	if name == "" || env.Kind != ahp.Request || bytes.HasPrefix(env.Channel, []byte(ahp.TCPScheme)) {
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
	e.Keep(ahp.Places(list, params), func(i int) bool { return list[i].Name != name })
	if !e.Changes() {
		return Decision{}
	}
	return Decision{Replace, e.Apply(message)}
}

// FromHost implements [Gate].
func (Windows) FromHost([]byte, *ahp.Envelope, *view.Reading) Decision { return Decision{} }
