package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A data packet is wire version, kind, epoch, number, released, payload; an
// ack packet is wire version, kind, epoch, flags, released, have, last; a bye
// packet is wire version, kind, epoch, reason. All numbers are unsigned
// varints. Packets with version 0 are the handshake's, see hello.go.
type packetKind byte

const (
	packetData packetKind = iota + 1
	packetAck
	packetBye
)

const (
	ackGap   = 1 << iota // something after have was seen to be missing: send it again
	ackProbe             // answer with an ack at once
)

// HeaderRoom is how many bytes a payload given to [Link.Seal] leaves free at
// its front, for the packet's header.
const HeaderRoom = 2 + 3*binary.MaxVarintLen64

// Errors of [Link.Receive].
var (
	// ErrOtherEpoch reports a packet of an earlier or later run of the link.
	ErrOtherEpoch = errors.New("packet of another epoch")
	// ErrBadPacket reports bytes that no peer of this wire version sends.
	ErrBadPacket = errors.New("bad packet")
)

// A LinkConfig sets the times and bounds of a [Link]. The zero value of a
// field means its default.
type Config struct {
	Window    int           // bytes sent and not released, at most, packetCost for each packet included; default 16 MiB
	Heartbeat time.Duration // an idle end says that it is there; default 2 s
	Resume    time.Duration // the longest cut after which all goes on: a peer silent for that long, a heartbeat and two probes is lost; default 15 s
	AckDelay  time.Duration // an ack waits this long for company; default 20 ms
	Probe     time.Duration // packets that are not released, and a heartbeat that is late, are asked after, again each time; default 500 ms
	Retry     time.Duration // a gap is reported again, then after twice as long each time; default 100 ms
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Window == 0 {
		c.Window = 16 << 20
	}
	def(&c.Heartbeat, 2*time.Second)
	def(&c.Resume, 15*time.Second)
	def(&c.AckDelay, 20*time.Millisecond)
	def(&c.Probe, 500*time.Millisecond)
	def(&c.Retry, 100*time.Millisecond)
	return c
}

const (
	// ackEvery is how many received bytes make an ack due at once.
	ackEvery = 256 << 10

	// packetCost is what a packet takes of the window besides its bytes, so
	// that small ones are bounded too.
	packetCost = 256

	// maxReason is how much of a peer's reason is kept, in bytes.
	maxReason = 256
)

// A Link is one end of a numbered, acknowledged stream of packets in each
// direction between a relay instance and a host-agent instance. It does no
// I/O and knows no clock: its owner publishes what Seal, Resend and Tick
// return, and passes what arrives to Receive.
//
// Packets are numbered from 1. The receiver takes them in order, each once:
// what comes twice is dropped, what comes after a gap is dropped and asked
// for again. A packet stays with its sender until the receiver has released
// it, which it does when it needs nothing more of the sender for it ([Link.Done]).
// Nothing that is not released is ever forgotten; instead CanSend says no.
//
// A Link is not safe for concurrent use.
type Link struct {
	cfg     Config
	version byte
	epoch   uint64
	tags    *linkSeal // nil: packets have no tags

	// Sending.
	sent       uint64   // number of the newest packet
	unreleased [][]byte // packets sent-len+1 … sent
	bytes      int      // of unreleased
	resend     uint64   // next number to send again; 0: none
	resentAt   time.Time
	resentFrom uint64
	timed      uint64 // packet whose way there and back is being timed; 0: none
	timedAt    time.Time
	roundTrip  time.Duration // as last timed
	progressAt time.Time     // unreleased last shrank
	askedAt    time.Time     // the last probe
	spokeAt    time.Time     // last packet of any kind

	// Receiving.
	have    uint64   // all up to this number received
	seen    uint64   // highest number known to exist
	undone  []uint64 // received and not done, in order
	acked   uint64   // released number last told
	unacked int      // bytes received since
	ackAt   time.Time
	ask     bool      // the next ack asks for one in return
	gapAt   time.Time // when the gap after have is to be reported (again); zero: there is none
	gapWait time.Duration
	moved   bool // have grew since the gap was reported: what is missing now was lost anew
	heardAt time.Time
}

// NewLink returns one end of a link in the given wire version and epoch. Both
// ends have agreed on these in the handshake.
func New(cfg Config, version byte, epoch uint64, now time.Time) *Link {
	cfg = cfg.withDefaults()
	return &Link{cfg: cfg, version: version, epoch: epoch, spokeAt: now, heardAt: now, gapWait: cfg.Retry}
}

// Epoch returns the link's epoch.
func (l *Link) Epoch() uint64 { return l.epoch }

// CanSend reports whether the window has room for one more packet. One
// packet fits an empty window however large it is.
func (l *Link) CanSend() bool { return l.bytes < l.cfg.Window }

// Settled reports whether the peer has released all that was sent.
func (l *Link) Settled() bool { return len(l.unreleased) == 0 }

// Next returns the number that the next sealed packet will have.
func (l *Link) Next() uint64 { return l.sent + 1 }

// Seal numbers a payload and returns the packet to publish. The payload's
// first [HeaderRoom] bytes are free for the header. The link keeps the slice
// until the peer has released it.
func (l *Link) Seal(payload []byte, now time.Time) []byte {
	var h [HeaderRoom]byte
	b := append(h[:0], l.version, byte(packetData))
	b = binary.AppendUvarint(b, l.epoch)
	b = binary.AppendUvarint(b, l.sent+1)
	b = binary.AppendUvarint(b, l.released())
	packet := payload[HeaderRoom-len(b):]
	copy(packet, b)
	packet = l.tags.seal(packet)
	l.sent++
	if len(l.unreleased) == 0 {
		l.progressAt = now
	}
	if l.timed == 0 {
		l.timed, l.timedAt = l.sent, now
	}
	l.unreleased = append(l.unreleased, packet)
	l.bytes += len(packet) + packetCost
	l.spoke(now)
	return packet
}

// Resend returns the next packet that the peer misses, or nil.
func (l *Link) Resend(now time.Time) []byte {
	if l.resend == 0 {
		return nil
	}
	first := l.sent - uint64(len(l.unreleased)) + 1
	l.resend = max(l.resend, first)
	if l.resend > l.sent {
		l.resend = 0
		return nil
	}
	packet := l.unreleased[l.resend-first]
	l.resend++
	l.spokeAt = now
	return packet
}

// spoke notes that a packet has told the peer what is released.
func (l *Link) spoke(now time.Time) {
	l.spokeAt = now
	l.acked = l.released()
	l.unacked = 0
	l.ackAt = time.Time{}
}

// released is the number up to which nothing more is needed of the peer.
func (l *Link) released() uint64 {
	if len(l.undone) > 0 {
		return l.undone[0] - 1
	}
	return l.have
}

// Done says that nothing more is needed of the peer for packet number, which
// Receive has returned.
func (l *Link) Done(number uint64, now time.Time) {
	if i, found := slices.BinarySearch(l.undone, number); found {
		l.undone = slices.Delete(l.undone, i, i+1)
	}
	if l.released() == l.acked {
		return
	}
	if l.unacked >= ackEvery {
		l.ackAt = now
	} else if l.ackAt.IsZero() {
		l.ackAt = now.Add(l.cfg.AckDelay)
	}
}

// A Received is what a packet meant.
type Received struct {
	Number   uint64 // of a data packet that is new and in order, else 0
	Payload  []byte // of that packet; aliases it
	Released uint64 // the peer needs nothing more of what was sent up to here
	Bye      string // why the peer has ended the link; empty: it has not
}

// Receive takes a packet that arrived.
func (l *Link) Receive(packet []byte, now time.Time) (Received, error) {
	r := Fields{B: packet}
	version, kind := r.Byte(), packetKind(r.Byte())
	epoch := r.Uvarint()
	if r.Bad || version != l.version {
		return Received{}, fmt.Errorf("%w: %d bytes, version %d, kind %d", ErrBadPacket, len(packet), version, kind)
	}
	if epoch != l.epoch {
		return Received{}, fmt.Errorf("%w: %d, want %d", ErrOtherEpoch, epoch, l.epoch)
	}
	if kind != packetBye {
		body, err := l.tags.open(packet)
		if err != nil {
			return Received{}, err
		}
		r.B = r.B[:len(r.B)-(len(packet)-len(body))]
	}
	var got Received
	switch kind {
	case packetData:
		got = l.receiveData(&r, now)
	case packetAck:
		l.receiveAck(&r, now)
	case packetBye:
		got.Bye = string(r.B[:min(len(r.B), maxReason)])
		if got.Bye == "" {
			got.Bye = "peer ended the link"
		}
	default:
		r.Bad = true
	}
	if r.Bad {
		return Received{}, fmt.Errorf("%w: %d bytes, kind %d", ErrBadPacket, len(packet), kind)
	}
	l.heardAt = now
	got.Released = l.sent - uint64(len(l.unreleased))
	return got, nil
}

func (l *Link) receiveData(r *Fields, now time.Time) Received {
	number, released := r.Uvarint(), r.Uvarint()
	if r.Bad || number == 0 || released > l.sent {
		r.Bad = true
		return Received{}
	}
	l.release(released, now)
	l.seen = max(l.seen, number)
	switch {
	case number <= l.have: // the peer did not hear of it: tell again
		l.ackAt = now
		return Received{}
	case number > l.have+1:
		// After a gap come what was sent before the peer heard of it, which
		// tells nothing, and then what is missing: so if have has moved since
		// the report, this is another gap.
		if l.gapAt.IsZero() || l.moved {
			l.gapAt, l.moved = now, false
		}
		return Received{}
	}
	l.have, l.moved = number, true
	l.gapAt, l.gapWait = time.Time{}, l.cfg.Retry
	if l.have < l.seen { // the rest is on its way
		l.gapAt = now.Add(l.gapWait)
	}
	l.undone = append(l.undone, number)
	l.unacked += len(r.B)
	return Received{Number: number, Payload: r.B}
}

func (l *Link) receiveAck(r *Fields, now time.Time) {
	flags := r.Byte()
	released, have, last := r.Uvarint(), r.Uvarint(), r.Uvarint()
	if r.Bad || released > have || have > l.sent {
		r.Bad = true
		return
	}
	l.arrived(have, now)
	l.release(released, now)
	if flags&ackGap != 0 && have < l.sent {
		l.startResend(have+1, now)
	}
	if flags&ackProbe != 0 {
		l.ackAt = now
	}
	l.seen = max(l.seen, last)
	if l.seen > l.have && l.gapAt.IsZero() {
		l.gapAt = now
	}
}

// startResend resends from number on, unless that is on its way: the peer
// reports a gap more than once, and some reports cross with what they ask for.
func (l *Link) startResend(number uint64, now time.Time) {
	if number == l.resentFrom && now.Sub(l.resentAt) < max(l.cfg.Retry/2, l.roundTrip*3/2) {
		return
	}
	l.resend, l.resentFrom, l.resentAt = number, number, now
	l.timed = 0 // its ack could be for either copy
}

// arrived notes that the peer has got everything up to number.
func (l *Link) arrived(number uint64, now time.Time) {
	if l.timed != 0 && number >= l.timed {
		l.roundTrip, l.timed = now.Sub(l.timedAt), 0
	}
}

func (l *Link) release(number uint64, now time.Time) {
	first := l.sent - uint64(len(l.unreleased)) + 1
	if number < first {
		return
	}
	l.arrived(number, now)
	n := int(number - first + 1)
	for _, p := range l.unreleased[:n] {
		l.bytes -= len(p) + packetCost
	}
	clear(l.unreleased[:n])
	l.unreleased = l.unreleased[n:]
	l.progressAt = now
}

// Tick returns an ack packet if one is due, when Tick is to be called again
// at the latest, and whether the peer has been silent for too long. Receive,
// Seal and Done may bring that time forward.
func (l *Link) Tick(now time.Time) (ack []byte, next time.Time, lost bool) {
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	var flags byte
	speak := due(l.ackAt) || due(l.spokeAt.Add(l.cfg.Heartbeat))
	if due(l.gapAt) {
		flags |= ackGap
		l.gapAt = now.Add(l.gapWait)
		l.gapWait = min(2*l.gapWait, l.cfg.Heartbeat) // a slow network is not to carry the same again and again
		speak = true
	}
	if l.ask || due(l.probeAt()) {
		flags |= ackProbe
		l.ask = false
		l.askedAt = now
		speak = true
	}
	if speak {
		ack = l.ack(flags, now)
	}
	return ack, l.deadline(), due(l.limit())
}

// limit is when the peer counts as lost. A cut may begin just before a heartbeat
// would have come, and end just before a probe leaves, whose answer takes a
// moment.
func (l *Link) limit() time.Time {
	return l.heardAt.Add(l.cfg.Resume + l.cfg.Heartbeat + 2*l.cfg.Probe)
}

// due is when Resend or Tick is to be called, as things are.
func (l *Link) due() time.Time {
	if l.resend != 0 || l.ask {
		return time.Time{} // now
	}
	return l.deadline()
}

// deadline is when Tick is to be called at the latest.
func (l *Link) deadline() time.Time {
	next := l.spokeAt.Add(l.cfg.Heartbeat)
	for _, t := range [...]time.Time{l.ackAt, l.gapAt, l.probeAt(), l.limit()} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return next
}

// probeAt is when the peer is to be asked what it has and has sent: when it
// takes long to release something, or to say that it is there.
func (l *Link) probeAt() time.Time {
	at := l.heardAt.Add(l.cfg.Heartbeat + l.cfg.Probe)
	if slow := l.progressAt.Add(l.cfg.Probe); len(l.unreleased) > 0 && slow.Before(at) {
		at = slow
	}
	if again := l.askedAt.Add(l.cfg.Probe); at.Before(again) {
		at = again
	}
	return at
}

// Probe makes the next Tick ask the peer what it has and has sent: for the
// moment after a reconnect, when packets may have been lost either way.
func (l *Link) Probe() { l.ask = true }

func (l *Link) ack(flags byte, now time.Time) []byte {
	b := []byte{l.version, byte(packetAck)}
	b = binary.AppendUvarint(b, l.epoch)
	b = append(b, flags)
	b = binary.AppendUvarint(b, l.released())
	b = binary.AppendUvarint(b, l.have)
	b = binary.AppendUvarint(b, l.sent)
	l.spoke(now)
	return l.tags.seal(b)
}

// Bye returns the packet that ends a link of the given version and epoch.
func Bye(version byte, epoch uint64, reason string) []byte {
	b := binary.AppendUvarint([]byte{version, byte(packetBye)}, epoch)
	return append(b, reason...)
}
