package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/internal/lockorder"
)

// A Bus carries packets between processes: NATS, or memory in tests. It may lose
// messages, and does nothing worse: the messages of one publisher arrive in order in
// one Go channel, across subjects.
type Bus interface {
	// Publish sends one message and does not keep data.
	Publish(subject string, data []byte) error

	// Together calls publish. All messages that publish sends for this tenant leave
	// together when publish returns.
	Together(subject string, publish func())

	// Subscribe delivers the messages of a subject, which may contain wildcards, to
	// the channel into until cancel. It drops messages while into is full.
	Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error)
}

// Traffic is the content of a link. The link's writer calls Next, and its reader calls
// the other methods.
type Traffic interface {
	// Next returns the payload for packet number: about size bytes behind HeaderRoom
	// free bytes. Without anything to send it returns nil, and the time to ask again
	// without a wake-up (zero: never). With a size of 0 the window is full: Next then
	// returns only the records without which the peer cannot release a packet.
	Next(number uint64, size int, now time.Time) (payload []byte, again time.Time)

	// Handle receives the payload of a packet, which it may keep. It returns false if
	// it still needs the peer for that packet; Lines.Done follows then. An error ends
	// the link.
	Handle(number uint64, payload []byte) (done bool, err error)

	// Released reports that the peer needs nothing more up to packet number. It
	// returns whether Next may now have something to send.
	Released(number uint64) (more bool)

	// Ended is the last call: the link and everything on it are gone.
	Ended(reason error)
}

// Lines are a [Traffic]'s requests to its link, from any goroutine and under any of
// its own locks: links call their traffic without holding locks.
type Lines interface {
	// Wake makes the link call Next soon.
	Wake()

	// Done reports that a packet for which Handle returned false is done.
	Done(number uint64)
}

// Reasons for a link's end.
var (
	// ErrSilent reports a peer that was silent for the resume window.
	ErrSilent = errors.New("peer silent")
	// ErrBye reports a peer that ended the link.
	ErrBye = errors.New("peer ended the link")
	// ErrReplaced reports a peer that started the link anew.
	ErrReplaced = errors.New("peer started the link anew")
)

// An AgentGoneError ends the link to a host-agent instance that is known to have
// ended, without waiting for its silence.
type AgentGoneError struct {
	Reason string // for people
}

// Error returns the reason.
func (e *AgentGoneError) Error() string { return e.Reason }

// maxPayload bounds a packet's payload, so that frames of other connections can slip
// in between.
const maxPayload = 64 << 10

// inboxSize bounds the messages that wait for a link's reader. NATS drops messages
// beyond it, and the peer sends them again.
const inboxSize = 8192

// boundLink joins a [Link], its [Traffic], and the subject of its packets. One
// goroutine may flush while a second one receives.
type boundLink struct {
	bus     Bus
	subject string
	traffic Traffic
	writer  *writer

	idle bool // nothing is left to send or to be released; owned by the writer

	mu      lockorder.Mutex[lockorder.Link] // guards the fields below
	link    *Link
	full    bool            // the writer waits for room in the window
	settled []chan struct{} // closed by the writer when it becomes idle
}

// Wake implements Lines.
func (b *boundLink) Wake() { b.writer.wake() }

// Done implements Lines.
func (b *boundLink) Done(number uint64) {
	b.mu.Lock()
	b.link.Done(number, time.Now())
	b.mu.Unlock()
	b.Wake()
}

// probe sends a probe. Call it when packets may have been lost.
func (b *boundLink) probe() {
	b.mu.Lock()
	b.link.Probe()
	b.mu.Unlock()
	b.Wake()
}

// flush publishes one packet if one is ready, and an ack if one is due. It returns
// whether more may follow now, or the latest time of the next call. An error ends the
// link.
func (b *boundLink) flush() (more bool, again time.Time, err error) {
	now := time.Now()
	packet, again := b.next(now)
	if packet != nil {
		// The link keeps a packet that cannot be published, and sends it again when
		// the peer is back.
		err := b.bus.Publish(b.subject, packet)
		if errors.Is(err, nats.ErrMaxPayload) {
			return false, time.Time{}, fmt.Errorf("packet of %d bytes: %w", len(packet), err)
		}
		more = err == nil
	}
	b.mu.Lock()
	ack, next, lost := b.link.Tick(now)
	b.idle = packet == nil && again.IsZero() && b.link.Settled()
	if b.idle {
		for _, settled := range b.settled {
			close(settled)
		}
		b.settled = nil
	}
	b.mu.Unlock()
	if lost {
		return false, time.Time{}, ErrSilent
	}
	if ack != nil {
		_ = b.bus.Publish(b.subject, ack) // the next heartbeat repeats it
	}
	if again.IsZero() || next.Before(again) {
		again = next
	}
	return more, again, nil
}

// next returns the next packet to publish, or nil and the time to ask again.
func (b *boundLink) next(now time.Time) ([]byte, time.Time) {
	b.mu.Lock()
	packet := b.link.Resend(now)
	room, number := b.link.CanSend(), b.link.Next()
	b.full = !room
	b.mu.Unlock()
	if packet != nil {
		return packet, time.Time{}
	}
	size := maxPayload
	if !room {
		size = 0
	}
	payload, again := b.traffic.Next(number, size, now)
	if payload == nil {
		return nil, again
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.link.Seal(payload, now), time.Time{}
}

// receive handles one packet. An error other than errDamaged ends the link.
func (b *boundLink) receive(packet []byte) error {
	now := time.Now()
	b.mu.Lock()
	got, err := b.link.Receive(packet, now)
	b.mu.Unlock()
	switch {
	case errors.Is(err, ErrOtherEpoch):
		return nil // late, or of an earlier run
	case err != nil:
		return err
	case got.Bye != "":
		return fmt.Errorf("%w: %s", ErrBye, got.Bye)
	}
	more := b.traffic.Released(got.Released)
	done := false
	if got.Number != 0 {
		if done, err = b.traffic.Handle(got.Number, got.Payload); err != nil {
			return err
		}
	}
	b.mu.Lock()
	if done {
		b.link.Done(got.Number, now)
	}
	more = more || b.full && b.link.CanSend() || len(b.settled) > 0
	due := b.link.due()
	b.mu.Unlock()
	if more || b.writer.sleepsBeyond(due) {
		b.Wake()
	}
	return nil
}
