package sealed

import (
	"bytes"
	"compress/flate"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"sync"

	"ahprelay/ahp"
)

// Subprotocol is the WebSocket subprotocol of sealed connections.
const Subprotocol = "ahp.sealed.1"

// A kind is the first byte of a WebSocket message on a sealed connection.
type kind byte

const (
	kindAskKey kind = iota + 1
	kindHostKey
	kindFirst
	kindSecond
	kindThird
	kindRecord
	kindBody
	kindTag
	kindCrowd
)

// A Content is the type of a parcel's body. A parcel is padded, and sent in one or more
// records.
type Content byte

const (
	Message   Content = iota // an AHP message
	packed                   // a compressed AHP message; Open returns it as Message
	Heartbeat                // how many records the sender has opened, in 8 bytes
	Close                    // code in 2 bytes, reason
	Pending                  // empty: the pairing waits for a person's consent at the host
	Welcome                  // an Admission
	Ask                      // JSON of a request to the host-agent
	Answer                   // JSON of its answer
	EpochKey                 // an epoch's key, see Epoch; Open keeps it
	Part                     // a compressed part of messages, in shared bodies; Open keeps it for Joined
	Joined                   // an AHP message without its part, and the part's key and position; Open returns the whole as Message
	Place                    // the client's place in a crowd, see Crowd; Open keeps it
	Told                     // AHP messages for a crowd, each after its length; Open returns each as Message
	contents                 // number of the values above
)

// Sizes, in bytes.
const (
	tagSize   = 16
	headSize  = 5                       // of a parcel: content, and the length of the body
	pieceSize = 32 << 10                // of the longest piece of a parcel
	FrameSize = 1 + pieceSize + tagSize // of the longest WebSocket message with a record
)

// Bounds for one direction, below the limits of AES-GCM for one key.
const (
	maxRecords = 1 << 32 // also for shared bodies
	maxBytes   = 1 << 44
)

// compressFrom is the size from which responses are compressed, in bytes.
const compressFrom = 4 << 10

// ErrLie reports bytes which a correct peer cannot have sent through an honest relay: the
// relay, or a machine on the way, has changed them.
var ErrLie = errors.New("not the bytes that the other end has sealed: the relay, or something on the way to it, has changed them")

func lie(why string) error { return fmt.Errorf("%w (%s)", ErrLie, why) }

// errMixed reports a parcel whose pieces came partly in records and partly in shared
// bodies.
var errMixed = errors.New("sealed message came partly in records and partly in shared bodies")

// errSpent reports that a direction has reached its bound.
var errSpent = errors.New("this sealed connection has carried as much as its keys allow; reconnect")

// Padded returns the size to which n bytes are padded (Padmé).
func Padded(n int) int {
	if n < 2 {
		return n
	}
	exponent := bits.Len(uint(n)) - 1
	last := exponent - bits.Len(uint(exponent))
	if last <= 0 {
		return n
	}
	mask := 1<<last - 1
	return (n + mask) &^ mask
}

// A half is one direction of a session.
type half struct {
	aead   cipher.AEAD
	count  uint64 // records
	bytes  uint64
	bodies uint64 // shared bodies: announced by the host-agent with Give, or verified by the client
	err    error  // why the direction has ended; nil: it has not
	ad     [9]byte
}

func newHalf(key [32]byte) (half, error) {
	aead, err := newAEAD(key[:])
	return half{aead: aead}, err
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// recordAD returns the additional data for the next record, valid until the next call.
// Without shared bodies it equals the data of version 1.0.0-rc.1, which had none.
func (h *half) recordAD() []byte {
	h.ad[0] = byte(kindRecord)
	if h.bodies == 0 {
		return h.ad[:1]
	}
	binary.BigEndian.PutUint64(h.ad[1:], h.bodies)
	return h.ad[:]
}

// next returns the nonce for the next record of n bytes.
func (h *half) next(n int) ([]byte, error) {
	if h.err == nil && (h.count >= maxRecords || h.bodies > maxRecords || h.bytes+uint64(n) > maxBytes) {
		h.err = errSpent
	}
	if h.err != nil {
		return nil, h.err
	}
	nonce := binary.BigEndian.AppendUint64(make([]byte, 4, 12), h.count)
	h.count++
	h.bytes += uint64(n)
	return nonce, nil
}

// A Session is one end of a sealed connection after the handshake.
type Session struct {
	in, out half
	client  bool   // this is the client's end
	limit   int    // bytes of the longest body accepted by Open
	hash    []byte // handshake hash

	parcel []byte // pieces of an incomplete parcel
	shared bool   // the pieces came in shared bodies
	whole  int    // size of the parcel; 0: the next piece begins one

	tags    uint64     // tags made, or verified
	hearing hearing    // a client's shared bodies
	seat    *crowdSeat // a client's place in a crowd; nil: in none
	told    uint64     // frames for crowds that were opened
}

// ID identifies the session. It is equal at both ends.
func (s *Session) ID() []byte { return slices.Clone(s.hash) }

// Held returns the memory in use for an incomplete parcel, in bytes.
func (s *Session) Held() int { return cap(s.parcel) }

// Sealed returns the number of records that have been sealed.
func (s *Session) Sealed() uint64 { return s.out.count }

// Opened returns the number of records that have been opened.
func (s *Session) Opened() uint64 { return s.in.count }

// Seal encrypts a parcel, and returns the WebSocket messages to send. They must be sent in
// the order of the calls.
func (s *Session) Seal(content Content, body []byte) (frames [][]byte, err error) {
	if content == Message && !s.client && len(body) >= compressFrom && isResponse(body) {
		if small := deflate(body); len(small) < len(body) {
			content, body = packed, small
		}
	}
	if uint64(len(body)) > math.MaxUint32 {
		return nil, fmt.Errorf("message of %d bytes; want at most %d", len(body), uint32(math.MaxUint32))
	}
	err = cut(content, body, 1, func(frame []byte) error {
		nonce, err := s.out.next(len(frame) - 1)
		if err != nil {
			return err
		}
		frame[0] = byte(kindRecord)
		frames = append(frames, s.out.aead.Seal(frame[:1], nonce, frame[1:], s.out.recordAD()))
		return nil
	})
	return frames, err
}

// cut splits a parcel into pieces, and calls each with a frame for each piece: head free
// bytes, the piece, and room for a tag.
func cut(content Content, body []byte, head int, each func(frame []byte) error) error {
	size := Padded(headSize + len(body))
	front := binary.BigEndian.AppendUint32([]byte{byte(content)}, uint32(len(body)))
	for at := 0; at < size; at += pieceSize {
		n := min(pieceSize, size-at)
		frame := make([]byte, head+n, head+n+tagSize)
		rest := frame[head:]
		if at == 0 {
			rest = rest[copy(rest, front):]
		}
		body = body[copy(rest, body):]
		if err := each(frame); err != nil {
			return err
		}
	}
	return nil
}

func isResponse(message []byte) bool {
	env, err := ahp.Peek(message)
	return err == nil && env.Kind == ahp.Response
}

// Open handles a WebSocket message, and may overwrite it. If the message completes a
// parcel, Open returns the parcel and true; the caller then calls Next until it returns
// false. After an error, Open returns the same error again.
func (s *Session) Open(frame []byte) (content Content, body []byte, done bool, err error) {
	if s.in.err == nil {
		content, body, done, s.in.err = s.open(frame)
	}
	return content, body, done, s.in.err
}

func (s *Session) open(frame []byte) (content Content, body []byte, done bool, err error) {
	if s.client && len(frame) > 0 {
		switch kind(frame[0]) {
		case kindCrowd:
			return s.openTold(frame)
		case kindBody:
			return 0, nil, false, s.hear(frame)
		case kindTag:
			if err := s.verify(frame); err != nil {
				return 0, nil, false, err
			}
			content, body, done = s.Next()
			return content, body, done, nil
		}
	}
	return s.openRecord(frame)
}

func (s *Session) openRecord(frame []byte) (content Content, body []byte, done bool, err error) {
	if len(s.hearing.bodies) > 0 {
		return 0, nil, false, lie("shared bodies without a tag")
	}
	nonce, err := s.in.next(len(frame))
	switch {
	case err != nil:
		return 0, nil, false, err
	case len(frame) <= 1+tagSize || len(frame) > FrameSize || frame[0] != byte(kindRecord):
		return 0, nil, false, lie("not a record")
	}
	piece, err := s.in.aead.Open(frame[1:1], nonce, frame[1:], s.in.recordAD())
	if err != nil {
		return 0, nil, false, lie("the record does not follow the last one")
	}
	return s.recorded(piece)
}

func (s *Session) recorded(piece []byte) (content Content, body []byte, done bool, err error) {
	if s.whole > 0 && s.shared {
		return 0, nil, false, errMixed
	}
	content, body, done, err = s.take(piece)
	if err == nil && s.seat != nil && (!done || content != Place) {
		err = errors.New("a sealed record for a client in a crowd")
	}
	if err != nil || !done {
		return 0, nil, false, err
	}
	switch content {
	case Place:
		return 0, nil, false, s.sit(body)
	case EpochKey:
		return 0, nil, false, s.hearing.add(body)
	case Part, Told:
		return 0, nil, false, errors.New("a sealed record with a message that is not shared")
	}
	return content, body, true, nil
}

func (s *Session) take(piece []byte) (content Content, body []byte, done bool, err error) {
	if s.whole == 0 {
		if err := s.begin(piece); err != nil {
			return 0, nil, false, err
		}
	}
	rest := s.whole - len(s.parcel)
	switch {
	case len(piece) != min(rest, pieceSize):
		return 0, nil, false, errors.New("sealed record of a wrong length")
	case len(s.parcel) > 0 || len(piece) < rest:
		s.parcel = append(s.parcel, piece...)
		piece = s.parcel
	}
	if len(piece) < s.whole {
		return 0, nil, false, nil
	}
	s.parcel, s.whole = nil, 0
	content, body, err = s.unpack(piece)
	return content, body, err == nil, err
}

func (s *Session) begin(piece []byte) error {
	if len(piece) < headSize {
		return errors.New("sealed record without a head")
	}
	n := binary.BigEndian.Uint32(piece[1:])
	if int64(n) > int64(s.limit) {
		return fmt.Errorf("message of %d bytes; want at most %d", n, s.limit)
	}
	s.whole = Padded(headSize + int(n))
	return nil
}

// unpack returns the content and body of a complete parcel.
func (s *Session) unpack(parcel []byte) (Content, []byte, error) {
	content, body := Content(parcel[0]), parcel[headSize:]
	n := binary.BigEndian.Uint32(parcel[1:])
	if slices.ContainsFunc(body[n:], func(b byte) bool { return b != 0 }) {
		return 0, nil, errors.New("sealed record with wrong padding")
	}
	body = body[:n]
	switch {
	case content >= contents:
		return 0, nil, errors.New("sealed record of an unknown kind: the other end has a newer version")
	case content == packed && s.client:
		body, err := inflate(body, s.limit)
		return Message, body, err
	case content == Joined && s.client:
		body, err := s.join(body)
		return Message, body, err
	case content == packed, content >= EpochKey && !s.client:
		return 0, nil, errors.New("sealed record for the other direction")
	}
	return content, body, nil
}

// compressors are reused, because each needs about 1 MB.
var compressors = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.DefaultCompression)
	if err != nil {
		panic(err) // the level exists
	}
	return w
}}

// deflate compresses a message (RFC 1951).
func deflate(message []byte) []byte {
	var b bytes.Buffer
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&b)
	_, _ = w.Write(message) // a Buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

// inflate decompresses a message. It fails if the result exceeds limit bytes.
func inflate(small []byte, limit int) ([]byte, error) {
	rest := bytes.NewReader(small)
	message, err := io.ReadAll(io.LimitReader(flate.NewReader(rest), int64(limit)+1))
	switch {
	case err != nil:
		return nil, errors.New("sealed record with a damaged compressed message")
	case len(message) > limit:
		return nil, fmt.Errorf("message of more than %d bytes", limit)
	case rest.Len() > 0:
		return nil, errors.New("sealed record with bytes behind its compressed message")
	}
	return message, nil
}

// AppendClose returns the body of a Close record.
func AppendClose(code ahp.CloseCode, reason string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...)
}

// ReadClose reads the body of a Close record.
func ReadClose(body []byte) (code ahp.CloseCode, reason string, ok bool) {
	if len(body) < 2 {
		return 0, "", false
	}
	return ahp.CloseCode(binary.BigEndian.Uint16(body)), string(body[2:]), true
}

// AppendHeartbeat returns the body of a Heartbeat record: how many records this end has
// opened.
func AppendHeartbeat(opened uint64) []byte { return binary.BigEndian.AppendUint64(nil, opened) }

// ReadHeartbeat decodes the body of a Heartbeat record.
func ReadHeartbeat(body []byte) (opened uint64, ok bool) {
	if len(body) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(body), true
}
