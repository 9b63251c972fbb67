package sealed

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"
)

// Bounds of a crowd.
const (
	MaxTold = 256 << 10 // bytes of AHP messages in one Told parcel

	crowdHead  = 1 + 4 + 8 // of a frame: kind, generation, number
	crowdFront = crowdHead + signatureSize
	placeLeft  = 8                  // size of a Place parcel for a client that leaves
	placeTaken = 32 + shortVerifier // size of a Place parcel for a client that enters, without the number
)

// A Crowd seals each message once for all its members, which are clients that receive the same
// messages. All members know the key. The Crowd therefore signs each frame: a member could
// otherwise forge messages to other members. It is not safe for concurrent use.
type Crowd struct {
	signer     *Device
	verifier   Verifier
	key        [32]byte
	aead       cipher.AEAD
	generation uint32
	used       bool // the key has sealed a message
	number     uint64
	bytes      uint64
}

// NewCrowd returns a crowd without members.
func NewCrowd() (*Crowd, error) {
	signer, err := NewDevice()
	if err != nil {
		return nil, err
	}
	c := &Crowd{signer: signer, verifier: signer.Identity().Verifier}
	_, _ = rand.Read(c.key[:]) // never fails
	c.aead, err = newAEAD(c.key[:])
	return c, err
}

// Number returns the number that the next frame will have.
func (c *Crowd) Number() uint64 { return c.number }

// Spent reports whether the crowd has sealed epochBytes bytes, or has used all generations of its
// key. A new Crowd must then replace it.
func (c *Crowd) Spent() bool { return c.generation == math.MaxUint32 || c.bytes >= epochBytes }

// Enter returns the body of the Place parcel for a client that enters. It contains the key, which
// opens no message from before.
func (c *Crowd) Enter() ([]byte, error) {
	if err := c.fresh(); err != nil {
		return nil, err
	}
	number := bytes.TrimLeft(binary.BigEndian.AppendUint64(nil, c.number), "\x00")
	return slices.Concat(c.key[:], c.verifier.short(), number), nil
}

// Leave returns the body of the Place parcel for a client that leaves. It contains the number of
// the next frame, with which the client checks that it has received all earlier frames.
func (c *Crowd) Leave() []byte { return binary.BigEndian.AppendUint64(nil, c.number) }

// fresh replaces the key by its successor if the key has sealed a message, so that a new member
// cannot open messages from before.
func (c *Crowd) fresh() (err error) {
	if c.used {
		c.used = false
		c.generation++
		c.key = nextCrowdKey(c.key)
		c.aead, err = newAEAD(c.key[:])
	}
	return err
}

// nextCrowdKey returns the key for the next generation. The old key cannot be computed from it.
func nextCrowdKey(key [32]byte) [32]byte { return [32]byte(digest("crowd key", key[:])) }

// Tell seals AHP messages for all members, and returns the frames: one WebSocket message each.
func (c *Crowd) Tell(messages ...[]byte) (frames [][]byte, err error) {
	return c.seal(Told, AppendTold(nil, messages...))
}

// Beat seals a heartbeat for all members.
func (c *Crowd) Beat() (frames [][]byte, err error) {
	return c.seal(Heartbeat, AppendHeartbeat(0))
}

// AppendTold appends the body of a Told parcel.
func AppendTold(b []byte, messages ...[]byte) []byte {
	for _, m := range messages {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(m))), m...)
	}
	return b
}

func (c *Crowd) seal(content Content, body []byte) (frames [][]byte, err error) {
	err = cut(content, body, crowdFront, func(frame []byte) error {
		head := frame[:crowdHead:crowdHead]
		head[0] = byte(kindCrowd)
		binary.BigEndian.PutUint32(head[1:], c.generation)
		binary.BigEndian.PutUint64(head[5:], c.number)
		c.number++
		c.used = true
		c.bytes += uint64(len(frame))
		frame = c.aead.Seal(frame[:crowdFront], crowdNonce(head), frame[crowdFront:], head)
		signature, err := c.signer.sign(signedTold(head, frame[crowdFront:]))
		copy(frame[crowdHead:], signature)
		frames = append(frames, frame)
		return err
	})
	return frames, err
}

func crowdNonce(head []byte) []byte { return append(make([]byte, 4, 12), head[5:crowdHead]...) }

// signedTold returns the bytes that the signature in a crowd's frame covers.
func signedTold(head, ciphertext []byte) []byte {
	return append(append([]byte(label+"crowd\x00"), head...), ciphertext...)
}

// A crowdSeat is a client's membership in a crowd: the keys to check and open the crowd's frames,
// and the next frame's number.
type crowdSeat struct {
	verifier   Verifier
	key        [32]byte
	aead       cipher.AEAD
	generation uint32
	heard      bool   // a frame has arrived; the first frame has set generation
	number     uint64 // of the next frame
}

// sit handles the body of a Place parcel: the client enters a crowd or leaves it. A client that
// leaves must have received all frames so far.
func (s *Session) sit(body []byte) error {
	switch {
	case len(body) == placeLeft && s.seat != nil:
		if binary.BigEndian.Uint64(body) != s.seat.number {
			return lie("messages of a crowd are missing")
		}
		s.seat = nil
		return nil
	case len(body) < placeTaken || len(body) > placeTaken+8 || s.seat != nil:
		return errors.New("a place in a crowd out of turn")
	case len(body) > placeTaken && body[placeTaken] == 0:
		return errors.New("a place in a crowd with a number that begins with 0")
	}
	seat := &crowdSeat{key: [32]byte(body)}
	for _, b := range body[placeTaken:] {
		seat.number = seat.number<<8 | uint64(b)
	}
	var err1, err2 error
	seat.verifier, err1 = readShort(body[32:placeTaken])
	seat.aead, err2 = newAEAD(seat.key[:])
	s.seat = seat
	return errors.Join(err1, err2)
}

// openTold checks and opens a frame from the client's crowd: its number must be the next, and the
// signature valid. done is false while further pieces of a message are missing.
func (s *Session) openTold(frame []byte) (content Content, body []byte, done bool, err error) {
	seat := s.seat
	switch {
	case seat == nil:
		return 0, nil, false, lie("a crowd's message outside of a crowd")
	case len(frame) <= crowdFront+tagSize || len(frame) > crowdFront+pieceSize+tagSize:
		return 0, nil, false, lie("not a crowd's message")
	case len(s.hearing.bodies) > 0:
		return 0, nil, false, lie("shared bodies without a tag")
	}
	head, ciphertext := frame[:crowdHead], frame[crowdFront:]
	if binary.BigEndian.Uint64(head[5:]) != seat.number || !checks.verify(seat.verifier, signedTold(head, ciphertext), frame[crowdHead:crowdFront]) {
		return 0, nil, false, lie("a crowd's message that does not follow, or that the host has not signed")
	}
	if err := seat.step(binary.BigEndian.Uint32(head[1:])); err != nil {
		return 0, nil, false, err
	}
	piece, err := seat.aead.Open(make([]byte, 0, len(ciphertext)-tagSize), crowdNonce(head), ciphertext, head)
	if err != nil {
		return 0, nil, false, lie("a crowd's message that was changed")
	}
	seat.number++
	s.told++
	return s.toldPiece(piece)
}

// toldPiece adds a piece to the incomplete message from the crowd. If the message is complete, it
// returns the first AHP message in it.
func (s *Session) toldPiece(piece []byte) (content Content, body []byte, done bool, err error) {
	content, body, done, err = s.takeShared(piece, Told, Heartbeat)
	if !done || content == Heartbeat {
		return content, body, done, err
	}
	return s.split(body)
}

// step takes the key for a frame's generation: the current key, or its successor.
func (c *crowdSeat) step(generation uint32) (err error) {
	if !c.heard {
		c.generation, c.heard = generation, true
	}
	switch generation - c.generation {
	case 0:
		return nil
	case 1:
		c.generation = generation
		c.key = nextCrowdKey(c.key)
		c.aead, err = newAEAD(c.key[:])
		return err
	}
	return errors.New("a crowd's message with a key that is not next")
}

// split splits the body of a Told parcel into AHP messages. It returns the first, and keeps the
// others for Next.
func (s *Session) split(body []byte) (content Content, message []byte, done bool, err error) {
	for len(body) > 0 {
		if len(body) < 4 || uint64(binary.BigEndian.Uint32(body)) > uint64(len(body)-4) {
			return 0, nil, false, errors.New("a crowd's message that is cut short")
		}
		end := 4 + binary.BigEndian.Uint32(body)
		s.hearing.ready = append(s.hearing.ready, parcel{Message, body[4:end:end]})
		body = body[end:]
	}
	content, message, done = s.Next()
	return content, message, done, nil
}

// checks remembers the last valid signatures: several clients in one process often receive the same
// frame, and verify its signature once.
var checks verified

type verified struct {
	mu   sync.Mutex // guards the fields below
	last [64][sha256.Size]byte
	next int
}

// verify reports whether a signature is valid, from memory if possible.
func (c *verified) verify(v Verifier, signed, signature []byte) bool {
	h := sha256.New()
	h.Write(v[:])
	h.Write(signature)
	h.Write(signed)
	sum := [sha256.Size]byte(h.Sum(nil))
	if c.has(sum) {
		return true
	}
	if len(signature) != signatureSize || !v.verify(signed, signature) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[c.next] = sum
	c.next = (c.next + 1) % len(c.last)
	return true
}

func (c *verified) has(sum [sha256.Size]byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.last[:], sum)
}
