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
)

// Bounds of shared bodies.
const (
	MaxEpochs = 256       // newest epochs whose keys a client stores
	MaxShared = 512 << 10 // bytes of a shared message, or of a compressed part

	bodyHead   = 1 + 4 + 4 // of a body: kind, epoch, number
	tagged     = 1 + tagSize
	maxHeard   = 1 << 16 // bodies which wait for a tag
	epochBytes = 1 << 32 // bytes encrypted with one key

	partEpoch  = 0      // in the bodies of parts; no epoch has this number
	joinedHead = 32 + 4 // of a Joined parcel: the part's key and position
)

// Text before and behind the id of an answer which a Joined parcel shortens to that id.
const (
	answerFront = `{"jsonrpc":"2.0","id":`
	answerAfter = `,"result":`
)

// An Epoch encrypts messages for a set of clients, its readers. When the set changes, a new
// epoch with a new random key begins. An Epoch is not safe for concurrent use.
type Epoch struct {
	number uint32
	key    [32]byte
	aead   cipher.AEAD
	count  uint64
	bytes  uint64
}

// NewEpoch returns an epoch with a random key. The host-agent must not use a number twice, and
// begins with 1.
func NewEpoch(number uint32) (*Epoch, error) {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return newEpoch(number, key)
}

func newEpoch(number uint32, key [32]byte) (*Epoch, error) {
	aead, err := newAEAD(key[:])
	return &Epoch{number: number, key: key, aead: aead}, err
}

// Number returns the epoch's number.
func (e *Epoch) Number() uint32 { return e.number }

// Spent reports whether the key has reached its bound.
func (e *Epoch) Spent() bool { return e.count >= 1<<24 || e.bytes >= epochBytes }

// Key returns the body of the parcel which gives the key to a reader.
func (e *Epoch) Key() []byte {
	return append(binary.BigEndian.AppendUint32(nil, e.number), e.key[:]...)
}

// Seal encrypts a message for all readers, and returns the WebSocket messages.
func (e *Epoch) Seal(message []byte) (bodies [][]byte, err error) {
	return e.seal(Message, message)
}

func (e *Epoch) seal(content Content, body []byte) (bodies [][]byte, err error) {
	err = cut(content, body, bodyHead, func(frame []byte) error {
		if e.count > math.MaxUint32 {
			return errSpent
		}
		frame[0] = byte(kindBody)
		binary.BigEndian.PutUint32(frame[1:], e.number)
		binary.BigEndian.PutUint32(frame[5:], uint32(e.count))
		e.count++
		e.bytes += uint64(len(frame))
		head := frame[:bodyHead:bodyHead]
		bodies = append(bodies, e.aead.Seal(frame[:bodyHead], bodyNonce(head), frame[bodyHead:], head))
		return nil
	})
	return bodies, err
}

// SealPart encrypts a part of messages with a random key. It returns the key, for AppendJoined, and
// the WebSocket messages, or none if the part is too long.
func SealPart(part []byte) (key []byte, bodies [][]byte, err error) {
	small := deflate(part)
	if len(small) > MaxShared {
		return nil, nil, nil
	}
	e, err := NewEpoch(partEpoch)
	if err != nil {
		return nil, nil, err
	}
	bodies, err = e.seal(Part, small)
	return e.key[:], bodies, err
}

// AppendJoined returns the body of a Joined parcel: the part's key, and the message without the
// part message[at:at+n]; at is not 0. If the part is the result of an answer, the answer's id
// represents the message.
func AppendJoined(key, message []byte, at, n int) []byte {
	front, back := message[:at], message[at+n:]
	b := append(make([]byte, 0, joinedHead+len(front)+len(back)), key...)
	id, begins := bytes.CutPrefix(front, []byte(answerFront))
	id, ends := bytes.CutSuffix(id, []byte(answerAfter))
	if begins && ends && string(back) == "}" {
		return append(binary.BigEndian.AppendUint32(b, 0), id...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(at))
	return append(append(b, front...), back...)
}

// keepPart stores a body for the next Joined parcel, which has the key.
func (s *Session) keepPart(body []byte) error {
	h := &s.hearing
	switch h.partBytes += len(body); {
	case s.whole > 0:
		return errMixed
	case binary.BigEndian.Uint32(body[5:]) != uint32(len(h.part)) || h.partBytes > s.limit+2*pieceSize:
		return errors.New("a part of no message, or one that is too long")
	}
	h.part = append(h.part, body)
	return nil
}

// join decrypts the stored part, and inserts it into a message.
func (s *Session) join(body []byte) ([]byte, error) {
	part, err := s.openPart(body)
	if err != nil {
		return nil, err
	}
	if len(body)+len(part) > s.limit {
		return nil, errors.New("a message with a part that is too long")
	}
	at, rest := binary.BigEndian.Uint32(body[32:]), body[joinedHead:]
	switch {
	case at == 0:
		return slices.Concat([]byte(answerFront), rest, []byte(answerAfter), part, []byte("}")), nil
	case uint64(at) > uint64(len(rest)):
		return nil, errors.New("a message without the place of its part")
	}
	return slices.Concat(rest[:at], part, rest[at:]), nil
}

// openPart decrypts the stored part with the key in a Joined parcel.
func (s *Session) openPart(joined []byte) (part []byte, err error) {
	bodies := s.hearing.part
	s.hearing.part, s.hearing.partBytes = nil, 0
	if len(joined) < joinedHead || len(bodies) == 0 {
		return nil, errors.New("a message without its part")
	}
	aead, err := newAEAD(joined[:32])
	if err != nil {
		return nil, err
	}
	for i, body := range bodies {
		piece, err := aead.Open(nil, bodyNonce(body[:bodyHead]), body[bodyHead:], body[:bodyHead])
		if err != nil {
			return nil, errors.New("a part with a different key")
		}
		content, small, done, err := s.take(piece)
		if err == nil && (done != (i == len(bodies)-1) || done && content != Part) {
			err = errors.New("a part that is none")
		}
		if err != nil {
			return nil, err
		}
		part = small
	}
	if part, err = inflate(part, s.limit); err == nil && len(part) == 0 {
		err = errors.New("an empty part")
	}
	return part, err
}

func bodyNonce(head []byte) []byte { return append(make([]byte, 8, 12), head[5:bodyHead]...) }

// Give counts shared bodies sent to this client. Calls of Give and Seal must be in the order
// of sending. If there are too many, Seal returns an error.
func (s *Session) Give(bodies int) { s.out.bodies += uint64(bodies) }

// Tag returns the next tag: it confirms bodies with this sum, sent after the given number of
// records. It may be called concurrently with Seal and Open, but not with itself.
func (s *Session) Tag(sum [32]byte, records uint64) (tag [tagSize]byte) {
	nonce, ad := tagNonce(s.tags, sum, records)
	s.tags++
	return [tagSize]byte(s.out.aead.Seal(tag[:0], nonce, nil, ad))
}

// tagNonce returns the nonce and the additional data for a tag.
func tagNonce(number uint64, sum [32]byte, records uint64) (nonce, ad []byte) {
	nonce = binary.BigEndian.AppendUint64([]byte{0, 0, 0, 1}, number)
	ad = binary.BigEndian.AppendUint64([]byte{byte(kindTag)}, records)
	return nonce, append(ad, sum[:]...)
}

// hearing holds a client's epochs, its shared bodies without a tag, and its verified parcels.
type hearing struct {
	epochs []heardEpoch // oldest first
	bodies []heardBody  // not verified by a tag yet
	bytes  int          // of bodies
	ready  []parcel     // verified parcels

	part      [][]byte // verified bodies of the part for the next Joined parcel
	partBytes int      // of part
}

type heardEpoch struct {
	number uint32
	aead   cipher.AEAD
}

type heardBody struct {
	sum    [32]byte
	piece  []byte
	sealed []byte // in place of piece: a body of a part, whose key comes later
}

type parcel struct {
	content Content
	body    []byte
}

func (h *hearing) add(body []byte) error {
	if len(body) != 4+32 {
		return errors.New("epoch with a key of a wrong length")
	}
	number := binary.BigEndian.Uint32(body)
	if number == partEpoch || h.epoch(number) != nil {
		return errors.New("an epoch has two keys, or a wrong number")
	}
	aead, err := newAEAD(body[4:])
	if len(h.epochs) == MaxEpochs {
		h.epochs = slices.Delete(h.epochs, 0, 1)
	}
	h.epochs = append(h.epochs, heardEpoch{number, aead})
	return err
}

func (h *hearing) epoch(number uint32) cipher.AEAD {
	for i := len(h.epochs) - 1; i >= 0; i-- {
		if h.epochs[i].number == number {
			return h.epochs[i].aead
		}
	}
	return nil
}

// hear decrypts a shared body, and stores it until its tag arrives. Without the tag, any other
// reader could have made the body.
func (s *Session) hear(frame []byte) error {
	h := &s.hearing
	if s.seat != nil || len(frame) <= bodyHead+tagSize || len(frame) > bodyHead+pieceSize+tagSize {
		return lie("not a shared body")
	}
	if h.bytes += len(frame); h.bytes > s.limit+2*pieceSize || len(h.bodies) >= maxHeard {
		return lie("too many shared bodies without a tag")
	}
	head, sum := frame[:bodyHead], sha256.Sum256(frame)
	epoch := binary.BigEndian.Uint32(head[1:])
	if epoch == partEpoch {
		h.bodies = append(h.bodies, heardBody{sum: sum, sealed: bytes.Clone(frame)})
		return nil
	}
	aead := h.epoch(epoch)
	if aead == nil {
		return lie("a shared body of an unknown epoch")
	}
	piece, err := aead.Open(make([]byte, 0, len(frame)-bodyHead-tagSize), bodyNonce(head), frame[bodyHead:], head)
	if err != nil {
		return lie("a shared body that was changed")
	}
	h.bodies = append(h.bodies, heardBody{sum: sum, piece: piece})
	return nil
}

func (s *Session) verify(frame []byte) error {
	h := &s.hearing
	if len(frame) != tagged || len(h.bodies) == 0 {
		return lie("not the tag of shared bodies")
	}
	all := sha256.New()
	for i := range h.bodies {
		all.Write(h.bodies[i].sum[:])
	}
	nonce, ad := tagNonce(s.tags, [32]byte(all.Sum(nil)), s.in.count)
	if _, err := s.in.aead.Open(nil, nonce, frame[1:], ad); err != nil {
		return lie("these shared bodies do not follow")
	}
	s.tags++
	if s.in.bodies += uint64(len(h.bodies)); s.in.bodies > maxRecords {
		return errSpent
	}
	bodies := h.bodies
	h.bodies, h.bytes = nil, 0
	for i := range bodies {
		if err := s.verified(&bodies[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) verified(b *heardBody) error {
	if b.sealed != nil {
		return s.keepPart(b.sealed)
	}
	content, body, done, err := s.takeShared(b.piece, Message)
	if err == nil && done {
		s.hearing.ready = append(s.hearing.ready, parcel{content, body})
	}
	return err
}

// takeShared takes a piece that did not come in a record. Its parcel must have one of the kinds.
func (s *Session) takeShared(piece []byte, kinds ...Content) (content Content, body []byte, done bool, err error) {
	begins := s.whole == 0
	if !begins && !s.shared {
		return 0, nil, false, errMixed
	}
	content, body, done, err = s.take(piece)
	s.shared = s.whole > 0
	if err == nil && begins && !slices.Contains(kinds, Content(piece[0])) {
		err = errors.New("a shared message of a wrong kind")
	}
	return content, body, done && err == nil, err
}

// Next returns a further complete parcel, or false.
func (s *Session) Next() (content Content, body []byte, done bool) {
	h := &s.hearing
	if len(h.ready) == 0 {
		h.ready = nil
		return 0, nil, false
	}
	p := h.ready[0]
	h.ready = h.ready[1:]
	return p.content, p.body, true
}

// Heard returns a number which rises with each record, tag and crowd message from the
// host-agent. Only the client's end uses it.
func (s *Session) Heard() uint64 { return s.in.count + s.tags + s.told }
