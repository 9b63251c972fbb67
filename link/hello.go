package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// The handshake of a link. A relay that wants to reach a host sends a hello
// on the link's down subject, again and again until the host-agent instance
// answers on the up subject with a welcome or a refusal, or with a challenge first. A handshake message
// is the byte 0, which no wire version is, its kind, and JSON; unknown
// members are ignored, so that it stays readable for every later version.
type helloKind byte

const (
	helloHello helloKind = iota + 1
	helloWelcome
	helloRefuse
	helloChallenge
)

// Wire versions that this program speaks: the form of packets and of the
// records in them.
const (
	WireMin = 1
	WireMax = 1
)

// ErrOutdated reports a host-agent instance after which another, or the same one anew,
// was given the host.
var ErrOutdated = errors.New("host-agent has an older lease than the relay knows of")

// ErrIncompatible reports peers without a common wire version.
var ErrIncompatible = errors.New("no common wire version")

// A Hello opens a link: the relay's offer, and the host-agent's answer.
type Hello struct {
	Epoch    uint64   `json:"epoch"`              // of the link; each offer of one relay instance has a higher one
	Version  string   `json:"version"`            // of the program
	Wire     [2]int   `json:"wire"`               // lowest and highest version spoken; in a welcome both are the chosen one
	Features []string `json:"features,omitempty"` // in a welcome: those of the offer that the host-agent has too
	Credit   int      `json:"credit"`             // bytes that the sender of this lets the other send on each connection before any is written
	MaxFrame int      `json:"maxFrame"`           // bytes of the longest frame that the sender of this passes on
	Chunks   int      `json:"chunks,omitempty"`   // bytes of chunks of content that the relay keeps; 0: it does not know of them
	Reports  bool     `json:"reports,omitempty"`  // the relay takes reports of connections
	RefsCost bool     `json:"refsCost,omitempty"` // references to bodies take credit, and give it back, as the bytes do: if both say so
	Bodies   bool     `json:"bodies,omitempty"`   // the relay takes several bodies in one message
	Reason   string   `json:"reason,omitempty"`   // of a refusal: who must do what

	// Fence is the number of the newest lease of the host, as far as the sender knows:
	// the relay from the registry, the host-agent of its own. 0: it does not say. No
	// link is made to a host-agent that has a lower one.
	Fence uint64 `json:"fence,omitempty"`

	// How the relay proves itself, see linkauth.go.
	Share     []byte `json:"share,omitempty"`     // of this end, in a hello or challenge
	Peer      []byte `json:"peer,omitempty"`      // the share in the challenge that this hello answers
	Key       []byte `json:"key,omitempty"`       // the relay's
	Proof     []byte `json:"proof,omitempty"`     // its signature
	Untrusted bool   `json:"untrusted,omitempty"` // of a refusal: the relay has not proved itself
}

// FeatureAuthority says that a host-agent sees to what a client may do: a relay
// opens connections of clients that may not do everything only there.
const FeatureAuthority = "authority"

// FeatureCanvas says that a host-agent takes streams of bytes to canvases: see
// package routing.
const FeatureCanvas = "canvas"

// FeaturePreview says that a host-agent takes streams of bytes to previews.
const FeaturePreview = "preview"

// Has reports whether a welcome says that both ends have a feature.
func (h *Hello) Has(feature string) bool { return slices.Contains(h.Features, feature) }

// common returns the features of an offer that are also in own.
func common(offer, own []string) []string {
	return slices.DeleteFunc(slices.Clone(own), func(f string) bool { return !slices.Contains(offer, f) })
}

// check reports bounds with which nothing could ever be sent.
func (h *Hello) check() error {
	if h.Credit < 1 || h.MaxFrame < 1 {
		return fmt.Errorf("%w: credit of %d and frames of %d bytes", ErrBadPacket, h.Credit, h.MaxFrame)
	}
	return nil
}

// appendHello encodes a handshake message.
func appendHello(kind helloKind, h Hello) []byte {
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // no field can fail
	}
	return append([]byte{0, byte(kind)}, b...)
}

// isHello reports whether a packet belongs to the handshake.
func isHello(packet []byte) bool { return len(packet) >= 2 && packet[0] == 0 }

// readHello decodes a handshake message.
func readHello(packet []byte) (helloKind, Hello, error) {
	var h Hello
	if !isHello(packet) {
		return 0, h, fmt.Errorf("%w: no handshake", ErrBadPacket)
	}
	if err := json.Unmarshal(packet[2:], &h); err != nil {
		return 0, h, fmt.Errorf("%w: handshake: %w", ErrBadPacket, err)
	}
	return helloKind(packet[1]), h, nil
}

// CommonWire returns the highest wire version that both this program and a
// peer speaking peer[0] to peer[1] understand. The error tells which side to
// upgrade; peerName is what users call the peer.
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

// commonWire returns the highest version in both ranges, or 0 and whether self
// is the newer one.
func commonWire(peer, self [2]int) (v byte, newer bool) {
	highest := min(peer[1], self[1])
	if highest >= max(peer[0], self[0]) && highest > 0 {
		return byte(highest), false
	}
	return 0, peer[0] <= self[1]
}
