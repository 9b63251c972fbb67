package broker

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"

	"ahprelay/auth"
)

// A relay proves itself to a host-agent before there is a link, and each packet
// after that: a NATS server in between, or somebody who has got into an account,
// can neither open a link nor add to one.
//
//	relay                                       host-agent
//	  hello {epoch, share}             ── down ──▶
//	  ◀── up ── challenge {epoch, share}
//	  hello {epoch, share, peer, key, proof} ──▶
//	  ◀── up ── welcome
//
// Shares are X25519 public keys that both make for this link alone. The proof is
// a signature by the relays' key of everything that tells this link from others,
// see [auth.LinkID]; the host-agent knows that key from its token. Packets then
// end in a tag: HMAC-SHA256 cut to 16 bytes, with a key for each direction that
// is derived from both shares with HKDF-SHA256 and the info
//
//	"ahp-relay link v1 up" or "… down", SHA-256 of what was signed
//
// One with a bad tag is as if it had been lost. A bye has none: it could only do
// what losing all packets does. Bodies have none either, as all relays share
// them.
const (
	linkTag  = 16 // bytes
	linkInfo = "ahp-relay link v1 "
)

// errForged reports a packet that is not the peer's.
var errForged = errors.New("packet with a bad tag")

// A linkSeal makes and checks the tags of one end's packets. It is not safe for
// concurrent use.
type linkSeal struct {
	out, in hash.Hash
	sum     [sha256.Size]byte
}

// newShare makes one end's share of the secret of a link.
func newShare() *ecdh.PrivateKey {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // the system has no random numbers
	}
	return key
}

// newLinkSeal derives the keys of a link. Out is the direction of this end's
// packets.
func newLinkSeal(own *ecdh.PrivateKey, peer []byte, id auth.LinkID, out, in string) (*linkSeal, error) {
	digest, err := id.Digest()
	if err != nil {
		return nil, err
	}
	share, err := ecdh.X25519().NewPublicKey(peer)
	if err != nil {
		return nil, fmt.Errorf("link: share of the peer: %w", err)
	}
	secret, err := own.ECDH(share)
	if err != nil {
		return nil, fmt.Errorf("link: share of the peer: %w", err)
	}
	s := new(linkSeal)
	for direction, mac := range map[string]*hash.Hash{out: &s.out, in: &s.in} {
		key, err := hkdf.Key(sha256.New, secret, nil, linkInfo+direction+string(digest[:]), sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
		*mac = hmac.New(sha256.New, key)
	}
	return s, nil
}

// seal adds the tag to a packet of this end; to none of a nil seal.
func (s *linkSeal) seal(packet []byte) []byte {
	if s == nil {
		return packet
	}
	return append(packet, s.tag(s.out, packet)...)
}

// open takes the tag off a packet of the peer.
func (s *linkSeal) open(packet []byte) ([]byte, error) {
	if s == nil {
		return packet, nil
	}
	if len(packet) < 2+linkTag {
		return nil, errForged
	}
	packet, tag := packet[:len(packet)-linkTag], packet[len(packet)-linkTag:]
	if !hmac.Equal(s.tag(s.in, packet), tag) {
		return nil, errForged
	}
	return packet, nil
}

// tag returns a tag, which is good until the next.
func (s *linkSeal) tag(mac hash.Hash, packet []byte) []byte {
	mac.Reset()
	mac.Write(packet)
	return mac.Sum(s.sum[:0])[:linkTag]
}

// A trial is a relay's attempt to open a link, until it has proved itself.
type trial struct {
	epoch      uint64
	relayShare string
	share      *ecdh.PrivateKey
}

// A Trust returns the keys of the relays that a host-agent accepts links of.
type Trust func() ([]ed25519.PublicKey, error)

// A Proof signs a link in the relay's name: see [auth.Keys.ProveLink].
type Proof func(auth.LinkID) (key ed25519.PublicKey, proof []byte, err error)
