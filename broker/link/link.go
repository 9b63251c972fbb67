package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A data packet is wire version, kind, epoch, number, released, payload. An ack packet
// is wire version, kind, epoch, flags, released, have, last. A bye packet is wire
// version, kind, epoch, reason. All numbers are unsigned varints. Each packet ends in a
// tag (linkauth.go), or else in the CRC-32C of the bytes before it, big-endian. Packets of
// version 0 belong to the handshake, see hello.go.
type packetKind byte

const (
	packetData packetKind = iota + 1
	packetAck
	packetBye
)

const (
	ackGap   = 1 << iota // packets after have are missing: send them again
	ackProbe             // answer with an ack at once
)

// HeaderRoom is the free space, in bytes, that [Link.Seal] needs at a payload's front
// for the packet header.
const HeaderRoom = 2 + 3*binary.MaxVarintLen64

// Errors from [Link.Receive].
var (
	// ErrOtherEpoch reports a packet from an earlier or later run.
	ErrOtherEpoch = errors.New("packet of a different epoch")
	// ErrBadPacket reports bytes that this wire version never produces.
	ErrBadPacket = errors.New("bad packet")
)

// DefaultResume is the resume window of links: the longest interruption that clients do
// not notice. The lifetime of leases and the liveness limits of relays and host-agents
// derive from it.
const DefaultResume = 15 * time.Second

// A Config sets a [Link]'s times and bounds. A zero field means its default.
type Config struct {
	Window    int           // most bytes sent and not released, with packetCost for each packet; default 16 MiB
	Heartbeat time.Duration // an idle end sends an ack this often; default 2 s
	Resume    time.Duration // the longest cut that a link survives: a peer silent for this time, a heartbeat and two probes is lost; default DefaultResume
	AckDelay  time.Duration // an ack waits this long for a packet to travel with; default 20 ms
	Probe     time.Duration // interval of probes for packets that are not released, and for a late heartbeat; default 500 ms
	Retry     time.Duration // a gap is reported again after this time, doubled each time; default 100 ms
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
	def(&c.Resume, DefaultResume)
	def(&c.AckDelay, 20*time.Millisecond)
	def(&c.Probe, 500*time.Millisecond)
	def(&c.Retry, 100*time.Millisecond)
	return c
}

const (
	// ackEvery is the number of received bytes that makes an ack due at once.
	ackEvery = 256 << 10

	// packetCost is each packet's cost in the window beside its bytes. It bounds the
	// count of small packets.
	packetCost = 256

	// maxReason bounds a peer's reason, in bytes.
	maxReason = 256
)

// A Link is one end of a numbered, acknowledged stream of packets in each direction
// between a relay instance and a host-agent instance. It does no I/O and reads no
// clock: its owner publishes the packets that Seal, Resend and Tick return, and passes
// arriving packets to Receive.
//
// Packets are numbered from 1. The receiver accepts each packet once and in order: it
// drops duplicates, drops packets after a gap, and asks for the missing ones. The
// sender keeps a packet until the receiver has released it ([Link.Done]). The sender
// never forgets an unreleased packet; when its window is full, CanSend returns false.
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
	timed      uint64 // packet whose round trip is being timed; 0: none
	timedAt    time.Time
	roundTrip  time.Duration // the last measured round trip
	progressAt time.Time     // when unreleased last shrank
	askedAt    time.Time     // time of the last probe
	spokeAt    time.Time     // time of the last packet of any kind

	// Receiving.
	have    uint64   // all packets up to this number have been received
	seen    uint64   // highest number known to exist
	undone  []uint64 // received and not done, in order
	acked   uint64   // released number in the last ack
	unacked int      // bytes received since the last ack
	ackAt   time.Time
	ask     bool      // the next ack requests an ack in return
	gapAt   time.Time // when to report the gap after have next; zero: there is none
	gapWait time.Duration
	moved   bool // have grew since the gap was reported, so the missing packets were lost anew
	heardAt time.Time
}

// New returns one end of a link with the wire version and epoch that both ends agreed
// on in the handshake.
func New(cfg Config, version byte, epoch uint64, now time.Time) *Link {
	cfg = cfg.withDefaults()
	return &Link{cfg: cfg, version: version, epoch: epoch, spokeAt: now, heardAt: now, gapWait: cfg.Retry}
}

// Epoch returns the link's epoch.
func (l *Link) Epoch() uint64 { return l.epoch }

// CanSend reports whether the window has room for one more packet. One packet of any
// size fits an empty window.
func (l *Link) CanSend() bool { return l.bytes < l.cfg.Window }

// Held returns the bytes that were sent and not released, with the cost of each packet.
func (l *Link) Held() int { return l.bytes }

// Settled reports whether the peer has released everything that was sent.
func (l *Link) Settled() bool { return len(l.unreleased) == 0 }

// Next returns the next sealed packet's number.
func (l *Link) Next() uint64 { return l.sent + 1 }

// Seal numbers a payload and returns the packet to publish. The payload's first
// [HeaderRoom] bytes are free for the header. The link keeps the slice until the peer
// has released it.
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

// spoke records that a packet with the current released number has been sent.
func (l *Link) spoke(now time.Time) {
	l.spokeAt = now
	l.acked = l.released()
	l.unacked = 0
	l.ackAt = time.Time{}
}

// released returns the number up to which this end needs nothing more from the peer.
func (l *Link) released() uint64 {
	if len(l.undone) > 0 {
		return l.undone[0] - 1
	}
	return l.have
}

// Done records that this end needs nothing more from the peer for packet number, which
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

// A Received describes an arrived packet.
type Received struct {
	Number   uint64 // of a data packet that is new and in order, else 0
	Payload  []byte // of that packet; aliases it
	Released uint64 // the peer needs nothing more of the packets up to this number
	Bye      string // the peer's reason for ending the link; empty: the link goes on
}

// open checks a packet, and returns it without its tag or checksum.
func (l *Link) open(packet []byte) ([]byte, error) {
	if len(packet) > 1 && packetKind(packet[1]) == packetBye {
		return cutSum(packet)
	}
	return l.tags.open(packet)
}

// Receive handles a packet that arrived. A damaged packet counts as lost: the sender
// repeats it after the gap is found.
func (l *Link) Receive(packet []byte, now time.Time) (Received, error) {
	body, damaged := l.open(packet)
	r := Fields{B: body}
	if damaged != nil {
		r.B = packet
	}
	version, kind := r.Byte(), packetKind(r.Byte())
	epoch := r.Uvarint()
	switch {
	case !r.Bad && epoch != l.epoch: // its tag has a different key
		return Received{}, fmt.Errorf("%w: %d, want %d", ErrOtherEpoch, epoch, l.epoch)
	case damaged != nil:
		return Received{}, damaged
	case r.Bad || version != l.version:
		return Received{}, fmt.Errorf("%w: %d bytes, version %d, kind %d", ErrBadPacket, len(packet), version, kind)
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
	case number <= l.have: // the peer has not received our ack: send it again
		l.ackAt = now
		return Received{}
	case number > l.have+1:
		// Packets that were sent before the peer learnt of the gap arrive first and
		// mean nothing; the missing packets follow. If have has grown since the
		// report, this is a new gap.
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

// startResend resends from number on, unless a resend is under way: the peer reports a
// gap more than once, and some reports cross with the packets that they ask for.
func (l *Link) startResend(number uint64, now time.Time) {
	if number == l.resentFrom && now.Sub(l.resentAt) < max(l.cfg.Retry/2, l.roundTrip*3/2) {
		return
	}
	l.resend, l.resentFrom, l.resentAt = number, number, now
	l.timed = 0 // its ack could be for either copy
}

// arrived records that the peer has received everything up to number.
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

// Tick returns an ack packet if one is due, the latest time of the next call, and
// whether the peer has been silent for too long. Receive, Seal and Done may bring that
// time forward.
func (l *Link) Tick(now time.Time) (ack []byte, next time.Time, lost bool) {
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	var flags byte
	speak := due(l.ackAt) || due(l.spokeAt.Add(l.cfg.Heartbeat))
	if due(l.gapAt) {
		flags |= ackGap
		l.gapAt = now.Add(l.gapWait)
		l.gapWait = min(2*l.gapWait, l.cfg.Heartbeat) // do not send the same again and again over a slow network
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

// limit returns the time at which the peer counts as lost. A cut may begin just before
// a heartbeat and end just before a probe, whose answer takes a moment.
func (l *Link) limit() time.Time {
	return l.heardAt.Add(l.cfg.Resume + l.cfg.Heartbeat + 2*l.cfg.Probe)
}

// due returns when to call Resend or Tick, in the current state.
func (l *Link) due() time.Time {
	if l.resend != 0 || l.ask {
		return time.Time{} // now
	}
	return l.deadline()
}

// deadline returns when to call Tick at the latest.
func (l *Link) deadline() time.Time {
	next := l.spokeAt.Add(l.cfg.Heartbeat)
	for _, t := range [...]time.Time{l.ackAt, l.gapAt, l.probeAt(), l.limit()} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return next
}

// probeAt returns the time of the next probe, which is sent when the peer is late with
// a release or a heartbeat.
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

// Probe makes the next Tick send a probe. The owner calls it after a reconnect, when
// packets may have been lost in either direction.
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
	return appendSum(append(b, reason...))
}
