package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/lockorder"
)

// A Bus carries packets between the processes: NATS, or memory in tests.
// Messages may be lost, and nothing else: those of one publisher arrive in
// order in one Go channel, whatever their subjects.
type Bus interface {
	// Publish sends one message and does not keep data.
	Publish(subject string, data []byte) error

	// Together calls publish, and has what that publishes, on this subject and others of its
	// tenant, leave in one piece when it returns.
	Together(subject string, publish func())

	// Subscribe has the messages of a subject, which may have wildcards, sent
	// to the channel into, or dropped while that is full, until cancel.
	Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error)
}

// Traffic is what a link carries. The methods are called by the goroutines of
// the link: Next by its writer, the others by its reader.
type Traffic interface {
	// Next returns what to send next as the given packet number: a payload of
	// about size bytes, behind HeaderRoom free bytes. If there is nothing it
	// returns nil, and when to ask again without a wake-up (zero: never). A
	// size of 0 says that the window is full: only that may be sent for which
	// the peer waits before it can release anything.
	Next(number uint64, size int, now time.Time) (payload []byte, again time.Time)

	// Handle takes the payload of a packet, which it may keep. It returns
	// false if it still needs the peer for it; Lines.Done follows then. An
	// error ends the link.
	Handle(number uint64, payload []byte) (done bool, err error)

	// Released says that the peer needs nothing more of the packets up to
	// number. It returns whether Next may have something to send now that
	// waited for that.
	Released(number uint64) (more bool)

	// Ended is the last call: the link is gone, and with it all that it
	// carried.
	Ended(reason error)
}

// Lines is what a [Traffic] may ask of its link, from any goroutine and under
// any lock of its own: links call their traffic without holding theirs.
type Lines interface {
	// Wake has Next called soon.
	Wake()

	// Done says that a packet, of which Handle returned false, is done with.
	Done(number uint64)
}

// Reasons for the end of a link.
var (
	// ErrSilent reports a peer that was not heard for the resume window.
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

// maxPayload is how large a packet's payload is to be at most: small enough
// for frames of other connections to slip in between.
const maxPayload = 64 << 10

// inboxSize bounds the messages that wait for a link's reader. What is over
// that is dropped by NATS and sent again by the peer.
const inboxSize = 8192

// boundLink joins a [Link], the [Traffic] that it carries and the subject on
// which its packets leave. One goroutine may flush while another receives.
type boundLink struct {
	bus     Bus
	subject string
	traffic Traffic
	writer  *writer

	idle bool // nothing is left to send or to be released; owned by the writer

	mu      lockorder.Mutex[lockorder.Link] // guards the fields below
	link    *Link
	full    bool            // the writer waits for room in the window
	settled []chan struct{} // closed by the writer when it is idle next
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

// probe asks the peer what it has: call it when packets may have been lost.
func (b *boundLink) probe() {
	b.mu.Lock()
	b.link.Probe()
	b.mu.Unlock()
	b.Wake()
}

// flush publishes one packet if there is one to send, and an ack if it is
// due. It returns whether there may be more to publish now, else when to call
// it again at the latest. An error says that the link is over.
func (b *boundLink) flush() (more bool, again time.Time, err error) {
	now := time.Now()
	packet, again := b.next(now)
	if packet != nil {
		// A packet that cannot be published stays with the link, which sends
		// it again when the peer is there again.
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
		_ = b.bus.Publish(b.subject, ack) // the next heartbeat says the same
	}
	if again.IsZero() || next.Before(again) {
		again = next
	}
	return more, again, nil
}

// next returns the next packet to publish, or nil and when to ask again.
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

// receive takes one packet. An error says that the link is over.
func (b *boundLink) receive(packet []byte) error {
	now := time.Now()
	b.mu.Lock()
	got, err := b.link.Receive(packet, now)
	b.mu.Unlock()
	switch {
	case errors.Is(err, ErrOtherEpoch), errors.Is(err, errForged):
		return nil // late, of a former run, or not of the peer
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
