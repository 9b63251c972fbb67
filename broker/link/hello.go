package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// The handshake of a link: a relay sends a hello on the link's down subject, and repeats
// it until the host-agent instance answers on the up subject with a challenge, a welcome
// or a refusal. A handshake message consists of the byte 0, which is no wire version, the
// kind, JSON, and the CRC-32C of all that. Unknown JSON members are ignored, so that later
// versions can add some.
type helloKind byte

const (
	helloHello helloKind = iota + 1
	helloWelcome
	helloRefuse
	helloChallenge
)

// The wire versions that this program supports. A wire version defines the encoding of
// packets and records.
const (
	WireMin = 2
	WireMax = 2
)

// ErrOutdated reports a host-agent instance whose lease is older than the host's newest
// lease that the relay knows.
var ErrOutdated = errors.New("host-agent has an older lease than the relay knows of")

// ErrIncompatible reports that the peers support no common wire version.
var ErrIncompatible = errors.New("no common wire version")

// ErrRefused reports that one end refuses the link for another reason, which the error names.
var ErrRefused = errors.New("link refused")

// A Hello is a relay's hello, or a host-agent's answer.
type Hello struct {
	Epoch    uint64   `json:"epoch"`              // number of the link; rises with each offer of a relay instance
	Version  string   `json:"version"`            // version of the program
	Wire     [2]int   `json:"wire"`               // lowest and highest supported wire version; in a welcome, the chosen version twice
	Features []string `json:"features,omitempty"` // in a welcome: the features of the offer that the host-agent supports
	Credit   int      `json:"credit"`             // bytes that the peer may send on each connection before any credit returns
	MaxFrame int      `json:"maxFrame"`           // longest message that the sender accepts, in bytes
	Chunks   int      `json:"chunks,omitempty"`   // bytes of content chunks that the relay stores
	Reason   string   `json:"reason,omitempty"`   // of a refusal: which side must change what

	// Fence is the number of the host's newest lease: the newest that a relay knows from
	// the registry, or the host-agent's own; 0: unknown. A relay opens no link to a
	// host-agent whose lease has a lower number than the relay knows.
	Fence uint64 `json:"fence,omitempty"`

	// The relay's proof of identity, see linkauth.go.
	Share     []byte `json:"share,omitempty"`     // in a hello or challenge: this end's public key share
	Peer      []byte `json:"peer,omitempty"`      // the share from the challenge that this hello answers
	Key       []byte `json:"key,omitempty"`       // the relay's public key
	Proof     []byte `json:"proof,omitempty"`     // the relay's signature
	Untrusted bool   `json:"untrusted,omitempty"` // of a refusal: the proof is wrong
}

// FeatureAuthority marks a host-agent that enforces a client's permissions. All host-agents
// do, and relays of 1.0.0-rc.1 look for it.
const FeatureAuthority = "authority"

// FeatureFeed marks a relay that publishes copies of notifications for programs connected
// to NATS, see package routing.
const FeatureFeed = "feed"

// FeatureCanvas marks a host-agent that supports byte streams to canvases and previews, see
// package routing.
const FeatureCanvas = "canvas"

// FeaturePreview goes with FeatureCanvas. Relays of 1.0.0-rc.1 look for it.
const FeaturePreview = "preview"

// FeatureSealed marks a host-agent whose host is sealed: see package sealed.
const FeatureSealed = "sealed"

// FeatureMove marks a host-agent that keeps connections to the host for clients that
// change relays: see routing.RelayConn.Move.
const FeatureMove = "move"

// FeatureTags marks a relay that delivers the tags of sealed bodies, see package routing. All
// relays do, and host-agents of 1.0.0-rc.1 look for it.
const FeatureTags = "tags"

// FeatureCrowds marks a relay that knows crowds, see [routing.Crowd]. Relays of 1.0.0-rc.1 do not.
const FeatureCrowds = "crowds"

// Has reports whether a hello or welcome contains a feature. If a welcome does, both ends
// support the feature.
func (h *Hello) Has(feature string) bool { return slices.Contains(h.Features, feature) }

func common(offer, own []string) []string {
	return slices.DeleteFunc(slices.Clone(own), func(f string) bool { return !slices.Contains(offer, f) })
}

// check rejects bounds with which no message could be sent.
func (h *Hello) check() error {
	if h.Credit < 1 || h.MaxFrame < 1 {
		return fmt.Errorf("%w: credit of %d and frames of %d bytes", ErrBadPacket, h.Credit, h.MaxFrame)
	}
	return nil
}

func appendHello(kind helloKind, h Hello) []byte {
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // no field can fail
	}
	return appendSum(append([]byte{0, byte(kind)}, b...))
}

func isHello(packet []byte) bool { return len(packet) >= 2 && packet[0] == 0 }

func readHello(packet []byte) (helloKind, Hello, error) {
	var h Hello
	packet, err := cutSum(packet)
	if err != nil {
		return 0, h, err
	}
	if !isHello(packet) {
		return 0, h, fmt.Errorf("%w: no handshake", ErrBadPacket)
	}
	if err := json.Unmarshal(packet[2:], &h); err != nil {
		return 0, h, fmt.Errorf("%w: handshake: %w", ErrBadPacket, err)
	}
	return helloKind(packet[1]), h, nil
}

// CommonWire returns the highest wire version shared with a peer that supports peer[0] to
// peer[1]. Without one, the error has both programs' names and versions, and the program to
// upgrade.
func CommonWire(peer [2]int, peerName, peerVersion, selfName, selfVersion string) (byte, error) {
	self := [2]int{WireMin, WireMax}
	v, newer := commonWire(peer, self)
	if v > 0 {
		return v, nil
	}
	older, version := selfName, selfVersion
	if newer {
		older, version = peerName, peerVersion
	}
	return 0, fmt.Errorf("%w: %s %s speaks %d to %d, %s %s speaks %d to %d; upgrade the %s %s",
		ErrIncompatible, peerName, peerVersion, peer[0], peer[1], selfName, selfVersion, self[0], self[1], older, version)
}

// commonWire returns the highest version in both ranges, or 0; newer then reports that
// self has the newer range.
func commonWire(peer, self [2]int) (v byte, newer bool) {
	highest := min(peer[1], self[1])
	if highest >= max(peer[0], self[0]) && highest > 0 {
		return byte(highest), false
	}
	return 0, peer[0] <= self[1]
}
