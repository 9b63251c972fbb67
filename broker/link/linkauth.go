package link

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"ahprelay/auth"
)

// A relay proves its identity to a host-agent before there is a link, and tags each packet
// after that. A NATS server in between, or an intruder in an account, can thus neither open a
// link nor add a packet to one.
//
//	relay                                       host-agent
//	  hello {epoch, share}             ── down ──▶
//	  ◀── up ── challenge {epoch, share}
//	  hello {epoch, share, peer, key, proof} ──▶
//	  ◀── up ── welcome
//
// Shares are X25519 public keys that both ends create for this link alone. The proof is a
// signature by the relays' key over everything that identifies the link, see [auth.LinkID].
// The host-agent knows that key from its token. Each packet then ends in a count of 8 bytes,
// which is different for each sealed packet, and a tag of 16 bytes. The tag is the output of
// AES-256-GCM for an empty plaintext, with the packet and the count as additional data and a
// nonce of four zero bytes and the count. Each direction has a key, derived from both shares
// with HKDF-SHA256 and the info
//
//	"ahp-relay link v1 up" or "… down", SHA-256 of the signed bytes
//
// This costs less than a fifth of HMAC-SHA256. A packet with a bad tag counts as lost. A bye
// has no tag: it can do no more than the loss of all packets. Bodies have no tag, because all
// relays share them. Both have a checksum, which only finds accidents.
const (
	linkCount = 8  // bytes
	linkTag   = 16 // bytes
	linkNonce = 12 // bytes
	linkInfo  = "ahp-relay link v1 "
)

// A linkSeal creates and checks the tags of the packets of a link. It is not safe for
// concurrent use.
type linkSeal struct {
	out, in cipher.AEAD
	count   uint64 // of sealed packets
	nonce   [linkNonce]byte
}

// newShare returns one end's share of the secret of a link.
func newShare() *ecdh.PrivateKey {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // the system has no random numbers
	}
	return key
}

// newLinkSeal derives the keys of a link. out is the direction of this end's packets.
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
	for direction, aead := range map[string]*cipher.AEAD{out: &s.out, in: &s.in} {
		key, err := hkdf.Key(sha256.New, secret, nil, linkInfo+direction+string(digest[:]), sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
		if *aead, err = cipher.NewGCM(block); err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
	}
	return s, nil
}

// seal appends count and tag to a packet of this end. A nil seal appends a checksum.
func (s *linkSeal) seal(packet []byte) []byte {
	if s == nil {
		return appendSum(packet)
	}
	s.count++
	packet = binary.BigEndian.AppendUint64(packet, s.count)
	copy(s.nonce[linkNonce-linkCount:], packet[len(packet)-linkCount:])
	return s.out.Seal(packet, s.nonce[:], nil, packet)
}

// open checks and removes the trailer appended by the peer's seal.
func (s *linkSeal) open(packet []byte) ([]byte, error) {
	if s == nil {
		return cutSum(packet)
	}
	if len(packet) < linkCount+linkTag {
		return nil, errDamaged
	}
	body, tag := packet[:len(packet)-linkTag], packet[len(packet)-linkTag:]
	copy(s.nonce[linkNonce-linkCount:], body[len(body)-linkCount:])
	if _, err := s.in.Open(nil, s.nonce[:], tag, body); err != nil {
		return nil, errDamaged
	}
	return body[:len(body)-linkCount], nil
}

// A trial is a relay's attempt to open a link, until the relay has proved its
// identity.
type trial struct {
	epoch      uint64
	relayShare string
	share      *ecdh.PrivateKey
}

// A Trust returns the keys of the relays from which a host-agent accepts links.
type Trust func() ([]ed25519.PublicKey, error)

// A Proof signs a link in the relay's name, see [auth.Links.Prove].
type Proof func(auth.LinkID) (key ed25519.PublicKey, proof []byte, err error)
