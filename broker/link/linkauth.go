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

// A relay proves its identity to a host-agent before a link opens, and adds a tag to each
// packet. So neither a NATS server on the way nor an intruder in the tenant's account can
// open a link or add packets to one.
//
//	relay                                       host-agent
//	  hello {epoch, share}             ── down ──▶
//	  ◀── up ── challenge {epoch, share}
//	  hello {epoch, share, peer, key, proof} ──▶
//	  ◀── up ── welcome
//
// Shares are X25519 public keys, which both ends create for one link only. The proof is a
// signature with the relays' key over all parameters of the link, see [auth.LinkID]. The
// host-agent knows that key from its token.
//
// Each packet ends with a counter of 8 bytes, which rises with each sealed packet, and a tag
// of 16 bytes. The tag is the output of AES-256-GCM for an empty plaintext; the additional
// data are packet and counter, and the nonce is four zero bytes and the counter. Each
// direction has its own key, derived from both shares with HKDF-SHA256 and the info
//
//	"ahp-relay link v1 up" or "… down", SHA-256 of the signed bytes
//
// Such a tag takes less than a fifth of the time of HMAC-SHA256. A packet with a bad tag counts
// as lost. Byes have no tag, because a forged bye does no more harm than the loss of all
// packets. Bodies have no tag, because all relays share them. Byes and bodies have a checksum,
// which detects accidental changes only.
const (
	linkCount = 8  // bytes
	linkTag   = 16 // bytes
	linkNonce = 12 // bytes
	linkInfo  = "ahp-relay link v1 "
)

// A linkSeal makes the tags of sent packets and checks those of received packets. It is not
// safe for concurrent use.
type linkSeal struct {
	out, in cipher.AEAD
	count   uint64 // number of sealed packets
	nonce   [linkNonce]byte
}

func newShare() *ecdh.PrivateKey {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // the system has no random numbers
	}
	return key
}

// newLinkSeal derives the keys of a link. out is the direction of this end's packets, "up" or
// "down"; in is the opposite.
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

// seal appends counter and tag to a packet. If s is nil, it appends a checksum.
func (s *linkSeal) seal(packet []byte) []byte {
	if s == nil {
		return appendSum(packet)
	}
	s.count++
	packet = binary.BigEndian.AppendUint64(packet, s.count)
	copy(s.nonce[linkNonce-linkCount:], packet[len(packet)-linkCount:])
	return s.out.Seal(packet, s.nonce[:], nil, packet)
}

// open checks and removes the peer's counter and tag. If s is nil, it does so with the
// checksum.
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

// A trial is a challenge that a relay has not answered yet.
type trial struct {
	epoch      uint64
	relayShare string
	share      *ecdh.PrivateKey
}

// A Trust returns the public keys of the relays from which a host-agent accepts links.
type Trust func() ([]ed25519.PublicKey, error)

// A Proof signs a link's parameters with the relays' key, see [auth.Links.Prove].
type Proof func(auth.LinkID) (key ed25519.PublicKey, proof []byte, err error)
