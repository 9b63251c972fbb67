package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Packets consist of these fields. Data: wire version, kind, epoch, number, released,
// payload. Ack: wire version, kind, epoch, flags, released, have, last. Bye: wire version,
// kind, epoch, reason. Numbers are unsigned varints. Data and acks end with a tag
// (linkauth.go); byes, and all packets of a link without tags, with the big-endian CRC-32C of
// all bytes before it.
// Packets with version 0 belong to the handshake, see hello.go.
type packetKind byte

const (
	packetData packetKind = iota + 1
	packetAck
	packetBye
)

const (
	ackGap   = 1 << iota // packets after have are missing: resend them
	ackProbe             // answer with an ack at once
)

// HeaderRoom is how many bytes [Link.Seal] needs before a payload, for the packet's
// header.
const HeaderRoom = 2 + 3*binary.MaxVarintLen64

// Errors from [Link.Receive].
var (
	// ErrOtherEpoch reports a packet of an earlier or later link.
	ErrOtherEpoch = errors.New("packet of a different epoch")
	// ErrBadPacket reports bytes that this wire version never produces.
	ErrBadPacket = errors.New("bad packet")
)

// DefaultResume is the resume window: the longest interruption that links survive, so that
// clients do not notice it. The lifetime of leases and the timeouts for lost relays and
// host-agents derive from it.
const DefaultResume = 15 * time.Second

// A Config sets a [Link]'s times and bounds. A zero field means its default.
type Config struct {
	Window    int           // bound for sent and unreleased bytes, plus packetCost for each packet; default 16 MiB
	Heartbeat time.Duration // an end that sends nothing else sends an ack this often; default 2 s
	Resume    time.Duration // longest interruption that a link survives: a peer is lost after this time, a heartbeat and two probes of silence; default DefaultResume
	AckDelay  time.Duration // an ack waits this long for a data packet that can carry it; default 20 ms
	Probe     time.Duration // interval of probes while packets are unreleased or a heartbeat is late; default 500 ms
	Retry     time.Duration // a gap is reported again after this time, then after twice that, and so on, up to Heartbeat; default 100 ms
}

func (c Config) withDefaults() Config {
	c.Window = cmp.Or(c.Window, 16<<20)
	c.Heartbeat = cmp.Or(c.Heartbeat, 2*time.Second)
	c.Resume = cmp.Or(c.Resume, DefaultResume)
	c.AckDelay = cmp.Or(c.AckDelay, 20*time.Millisecond)
	c.Probe = cmp.Or(c.Probe, 500*time.Millisecond)
	c.Retry = cmp.Or(c.Retry, 100*time.Millisecond)
	return c
}

const (
	// After ackEvery received bytes, an ack is due at once.
	ackEvery = 256 << 10

	// packetCost is added to each packet's size in the window. It thus bounds the number
	// of small packets.
	packetCost = 256

	// maxReason bounds the reason in a bye or refusal, in bytes.
	maxReason = 256
)

// A Link is one end of two numbered, acknowledged packet streams between a relay instance
// and a host-agent instance, one stream in each direction. It does no I/O and reads no
// clock: its owner publishes the packets that Seal, Resend and Tick return, and passes
// received packets to Receive.
//
// Packets are numbered from 1. The receiver accepts each packet once and in order. It
// drops duplicates and packets after a gap, and requests the missing packets. The sender
// stores each packet until the receiver has released it ([Link.Done]). When the stored
// packets fill the window, CanSend returns false.
//
// A Link is not safe for concurrent use.
type Link struct {
	cfg     Config
	version byte
	epoch   uint64
	tags    *linkSeal // nil: packets have no tags

	// Sending.
	sent       uint64   // number of the newest packet
	unreleased [][]byte // packets sent-len+1 to sent
	bytes      int      // size of unreleased, with packetCost for each packet
	resend     uint64   // number of the next packet to resend; 0: none
	resentAt   time.Time
	resentFrom uint64
	timed      uint64 // number of the packet whose round trip is measured; 0: none
	timedAt    time.Time
	roundTrip  time.Duration // the last measured round trip
	progressAt time.Time     // when unreleased last shrank
	askedAt    time.Time     // time of the last probe
	spokeAt    time.Time     // when this end last sent a packet

	// Receiving.
	have    uint64   // all packets up to this number have been received
	seen    uint64   // highest packet number that the peer is known to have sent
	undone  []uint64 // received packets that are not done, in order
	acked   uint64   // number up to which the last ack released packets
	unacked int      // bytes received since the last ack
	ackAt   time.Time
	ask     bool      // the next ack requests an ack from the peer
	gapAt   time.Time // when to report the gap after have; zero: there is none
	gapWait time.Duration
	moved   bool          // have has grown since the last gap began, so a packet beyond have+1 shows a new gap
	heardAt time.Time     // when the peer was last heard
	tickAt  time.Time     // when the owner should call Tick at the latest; zero: it has not called Tick yet
	stood   time.Duration // longest time that this end stood still since heardAt, see Tick
}

// New returns one end of a link, for the wire version and epoch from the handshake.
func New(cfg Config, version byte, epoch uint64, now time.Time) *Link {
	cfg = cfg.withDefaults()
	return &Link{cfg: cfg, version: version, epoch: epoch, spokeAt: now, heardAt: now, gapWait: cfg.Retry}
}

// Epoch returns the link's epoch.
func (l *Link) Epoch() uint64 { return l.epoch }

// CanSend reports whether the window has room for a packet. An empty window has room for a
// packet of any size.
func (l *Link) CanSend() bool { return l.bytes < l.cfg.Window }

// Held returns the bytes of unreleased packets, with packetCost for each.
func (l *Link) Held() int { return l.bytes }

// Settled reports whether the peer has released all sent packets.
func (l *Link) Settled() bool { return len(l.unreleased) == 0 }

// Next returns the number of the next packet that Seal makes.
func (l *Link) Next() uint64 { return l.sent + 1 }

// Seal makes a data packet from a payload, for its owner to publish. It writes the header
// into the payload's first [HeaderRoom] bytes. The link keeps the slice until the peer has
// released the packet.
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

// Resend returns the next packet to resend, or nil.
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

// spoke records that a packet was sent; each packet carries the current released number.
func (l *Link) spoke(now time.Time) {
	l.spokeAt = now
	l.acked = l.released()
	l.unacked = 0
	l.ackAt = time.Time{}
}

// released returns the number up to which all received packets are done.
func (l *Link) released() uint64 {
	if len(l.undone) > 0 {
		return l.undone[0] - 1
	}
	return l.have
}

// Done records that a packet returned by Receive is done: this end will not need it from
// the peer again.
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

// A Received describes the packet given to Receive.
type Received struct {
	Number   uint64 // number of a data packet that is new and in order, else 0
	Payload  []byte // payload of that packet; aliases the packet
	Released uint64 // up to which number the peer has released this end's packets
	Bye      string // the peer's reason for ending the link; empty: it has not ended the link
}

// open checks the tag or checksum of a packet, and removes it.
func (l *Link) open(packet []byte) ([]byte, error) {
	if len(packet) > 1 && packetKind(packet[1]) == packetBye {
		return cutSum(packet)
	}
	return l.tags.open(packet)
}

// Receive handles a received packet. For a damaged packet, it returns errDamaged and changes
// nothing: the sender repeats the packet like a lost one.
func (l *Link) Receive(packet []byte, now time.Time) (Received, error) {
	body, damaged := l.open(packet)
	r := Fields{B: body}
	if damaged != nil {
		r.B = packet
	}
	version, kind := r.Byte(), packetKind(r.Byte())
	epoch := r.Uvarint()
	switch {
	case !r.Bad && epoch != l.epoch: // tags have a different key for each epoch
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
		got.Bye = cmp.Or(string(r.B[:min(len(r.B), maxReason)]), "peer ended the link")
	default:
		r.Bad = true
	}
	if r.Bad {
		return Received{}, fmt.Errorf("%w: %d bytes, kind %d", ErrBadPacket, len(packet), kind)
	}
	l.heardAt, l.stood = now, 0
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
	case number <= l.have: // a duplicate: the peer has not received the ack, so send it again
		l.ackAt = now
		return Received{}
	case number > l.have+1:
		// After a loss, packets that were already on their way arrive first: they are no new gap.
		// If l.have has grown since the last report, there is a new gap.
		if l.gapAt.IsZero() || l.moved {
			l.gapAt, l.moved = now, false
		}
		return Received{}
	}
	l.have, l.moved = number, true
	l.gapAt, l.gapWait = time.Time{}, l.cfg.Retry
	if l.have < l.seen { // the remaining packets are on their way
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

// startResend resends from a packet on. It does nothing if a resend from there has just
// begun: the peer reports a gap several times, and some reports cross with the resent
// packets.
func (l *Link) startResend(number uint64, now time.Time) {
	if number == l.resentFrom && now.Sub(l.resentAt) < max(l.cfg.Retry/2, l.roundTrip*3/2) {
		return
	}
	l.resend, l.resentFrom, l.resentAt = number, number, now
	l.timed = 0 // an ack could be for the first or the second copy
}

// arrived records that the peer has received all packets up to number.
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

// Tick returns an ack packet if one is due, the latest time for the next call of Tick, and
// whether the peer has been silent for too long. Receive, Seal and Done may bring that
// time forward. If Tick is called too late, this end stood still, and packets may wait to be
// received: that time is not the peer's silence. Of several such times, only the longest counts, so
// that an owner that is always late does not keep a silent peer for a multiple of the limit.
func (l *Link) Tick(now time.Time) (ack []byte, next time.Time, lost bool) {
	if !l.tickAt.IsZero() {
		l.stood = max(l.stood, min(now.Sub(l.tickAt), now.Sub(l.heardAt)))
	}
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	var flags byte
	speak := due(l.ackAt) || due(l.spokeAt.Add(l.cfg.Heartbeat))
	if due(l.gapAt) {
		flags |= ackGap
		l.gapAt = now.Add(l.gapWait)
		l.gapWait = min(2*l.gapWait, l.cfg.Heartbeat) // avoids frequent resends on a slow network
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
	l.tickAt = l.deadline()
	return ack, l.tickAt, due(l.limit())
}

// limit returns when a silent peer counts as lost. The resume window alone is too short: a
// cut may begin just before a heartbeat and end just after a probe, and a probe's answer
// takes time.
func (l *Link) limit() time.Time {
	return l.heardAt.Add(l.cfg.Resume + l.cfg.Heartbeat + 2*l.cfg.Probe + l.stood)
}

// Due returns when to call Resend or Tick.
func (l *Link) Due() time.Time {
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

// probeAt returns when to probe the peer, because a release or a heartbeat is late.
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

// Probe makes the next Tick return a probe. The owner calls it after a reconnect, because
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
