package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/internal/lockorder"
)

// A Bus carries packets between processes: NATS, or memory in tests. It may lose
// messages, but never reorders those from one publisher to one Go channel, even across
// subjects.
type Bus interface {
	// Publish sends one message and does not keep data.
	Publish(subject string, data []byte) error

	// Together calls publish. When publish returns, the messages that it has published
	// for this subject's tenant are sent at once.
	Together(subject string, publish func())

	// Subscribe sends the messages on a subject to the channel into, until cancel. The
	// subject may contain wildcards. While into is full, messages are dropped.
	Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error)
}

// Traffic produces and handles the content of a link. The link's writer calls Next;
// its reader calls Handle and Released.
type Traffic interface {
	// Next returns the payload for packet number: about size bytes, after HeaderRoom
	// bytes for the header. If there is nothing to send, it returns nil, and the time
	// of the next call if Wake is not called earlier (zero: never). A size of 0 means
	// that the window is full: Next then returns only records that the peer needs in
	// order to release packets.
	Next(number uint64, size int, now time.Time) (payload []byte, again time.Time)

	// Handle receives the payload of a packet, and may keep it. It returns false if it
	// still needs the peer for this packet, and then calls Lines.Done later. An error
	// ends the link.
	Handle(number uint64, payload []byte) (done bool, err error)

	// Released reports that the peer has released all packets up to a number. It
	// returns whether Next may have something to send now.
	Released(number uint64) (more bool)

	// Ended reports that the link has ended, and why. Any goroutine may call it. Only
	// calls that overlap with it may still follow.
	Ended(reason error)
}

// Lines are a [Traffic]'s calls to its link. They may be made from any goroutine, and
// while the traffic holds its own locks, because links hold no lock when they call
// their traffic.
type Lines interface {
	// Wake makes the link call Next soon.
	Wake()

	// Done reports that the traffic no longer needs the peer for a packet for which
	// Handle has returned false.
	Done(number uint64)
}

// Reasons why a link ended.
var (
	// ErrSilent reports that the peer was silent for too long, see Config.Resume.
	ErrSilent = errors.New("peer silent")
	// ErrBye reports that the peer has ended the link.
	ErrBye = errors.New("peer ended the link")
	// ErrReplaced reports that the peer has opened a new link.
	ErrReplaced = errors.New("peer started the link anew")
)

// An AgentGoneError reports that the host-agent instance is known to have ended. The
// relay then need not wait for its silence.
type AgentGoneError struct {
	Reason string // why the host-agent has ended; users can see it
}

// Error returns the reason.
func (e *AgentGoneError) Error() string { return e.Reason }

// maxPayload is the approximate limit of a packet's payload, so that messages of several connections can
// alternate.
const maxPayload = 64 << 10

// inboxSize bounds the messages that wait for a link's reader. NATS drops further
// messages, and the peer resends them.
const inboxSize = 8192

// A boundLink connects a [Link], its [Traffic], and the subject for its packets. One
// goroutine may call flush while another calls receive.
type boundLink struct {
	bus     Bus
	subject string
	traffic Traffic
	writer  *writer

	idle bool // nothing is left to send, and all packets are released; owned by the writer

	mu      lockorder.Mutex[lockorder.Link] // guards the fields below
	link    *Link
	full    bool            // the writer waits for room in the window
	settled []chan struct{} // closed by the writer when it becomes idle
}

func (b *boundLink) Wake() { b.writer.wake() }

func (b *boundLink) Done(number uint64) {
	b.mu.Lock()
	b.link.Done(number, time.Now())
	b.mu.Unlock()
	b.Wake()
}

// probe sends a probe. It is called when packets may have been lost.
func (b *boundLink) probe() {
	b.mu.Lock()
	b.link.Probe()
	b.mu.Unlock()
	b.Wake()
}

// flush publishes one packet if one is ready, and an ack if one is due. It returns
// whether more may follow at once, or the latest time of the next call. An error ends
// the link.
func (b *boundLink) flush() (more bool, again time.Time, err error) {
	now := time.Now()
	packet, again := b.next(now)
	if packet != nil {
		// If a packet cannot be published, the link resends it when the peer is
		// reachable again.
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

// next returns the next packet to publish, or nil and the time of the next call.
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
		return nil // late, or from an earlier link
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
	due := b.link.Due()
	b.mu.Unlock()
	if more || b.writer.sleepsBeyond(due) {
		b.Wake()
	}
	return nil
}
