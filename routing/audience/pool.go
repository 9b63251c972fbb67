package audience

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/lockorder"
	"ahprelay/routing"
)

// Bounds of audiences. Beyond a bound, the relay answers with an error, or closes the
// viewer with 1012.
const (
	maxKinds         = 16       // audiences of one link
	maxChannels      = 4096     // of an audience; equal to the bound of ahp/view
	maxSubscriptions = 1024     // channels of one viewer
	maxAsked         = 64       // unanswered requests of one viewer
	maxAskedBytes    = 8 << 20  // unanswered requests of an audience, with the ids of its viewers' requests
	maxUnread        = 16 << 20 // messages of the host that an audience has not begun to handle
	maxUnsent        = 16 << 20 // messages for the host, above which the audience answers no more requests of the host
	maxUnderWay      = 256      // requests of an audience that are pending at the host; further requests wait
	maxHeldBytes     = 8 << 20  // bytes held for one viewer until its snapshots arrive
	maxHeldItems     = 1 << 16
)

const (
	// spacing is the shortest time between two equal requests to the host. A viewer
	// that asks in between gets the answer to the second.
	spacing = 50 * time.Millisecond

	// linger is how long an audience without viewers stays connected, because viewers
	// may return.
	linger = 10 * time.Second
)

// An Upstream is an audience's connection to the host. *[routing.RelayConn] implements
// it.
type Upstream interface {
	// Send queues a message for the host, and waits while the queue is full.
	Send(ctx context.Context, message []byte) error

	// Written returns the credit of frames that were handled.
	Written(credit int)

	// Close ends the connection after all sent messages.
	Close(code ahp.CloseCode, reason string)
}

// A Config configures a Pool.
type Config struct {
	// Open connects to the host, like [routing.RelayEnd.Open]. It calls the client's
	// methods from a different goroutine.
	Open func(open routing.Open, client routing.ClientConn) (Upstream, error)

	// Encode returns a message or a piece as output for viewers, as in
	// [routing.RelayEndConfig]. Decode is its inverse: it calls piece for each piece,
	// with the payload and the encoded form (whole).
	Encode func(piece []byte, first, last, binary bool) []byte
	Decode func(encoded []byte, piece func(payload, whole []byte, first, last, binary bool))

	// Deflate is Encode with compression. Each piece is compressed separately, so
	// pieces of different texts can form a message. Nil: no compression.
	Deflate func(piece []byte, first, last, binary bool) []byte

	// Crowd makes a crowd for clients that are a [Follower]. Nil: there are no crowds.
	Crowd func() Crowd

	Life   context.Context   // its end ends calls that wait for a host
	Spawn  func(func()) bool // starts a goroutine; false: no more are started
	Queued func(n int)       // receives changes of the bytes queued for the host; may be nil
	Kept   func(n int)       // receives changes of the bytes held for viewers; may be nil
	Memory *Memory           // remembers viewers for reconnect; pools may share it
}

// A Pool contains the audiences at one [routing.RelayEnd]. It is safe for concurrent use.
type Pool struct {
	cfg Config

	mu        lockorder.Mutex[lockorder.Audience] // guards the fields below, audiences and viewers
	audiences map[kind]*audience
}

// A kind identifies an audience. It is equal for all its viewers.
type kind struct {
	name      string // the link's name
	authority string // the link's permissions, see [routing.Open.Authority]
	greeting  string // protocol versions and capabilities from initialize
}

// New returns a Pool without audiences.
func New(cfg Config) *Pool {
	for _, told := range []*func(int){&cfg.Queued, &cfg.Kept} {
		if *told == nil {
			*told = func(int) {}
		}
	}
	cfg.Memory = cmp.Or(cfg.Memory, NewMemory())
	return &Pool{cfg: cfg, audiences: map[kind]*audience{}}
}

// Enter returns a viewer for the link with a name. Open holds the link's permissions,
// and later describes the audience's connection to the host. The client gets the event
// Opened at once, and Ready with the answer to initialize or reconnect. The client's
// methods are called under this package's locks, and must not call back. Deflates
// requests compression for this viewer.
func (p *Pool) Enter(name string, open routing.Open, client routing.ClientConn, deflates bool) *Viewer {
	v := &Viewer{pool: p, name: name, open: open, client: client, deflates: deflates, subscriptions: map[string]*subscription{}}
	client.Event(routing.Opened)
	return v
}

// Stats returns the numbers of audiences and viewers.
func (p *Pool) Stats() (audiences, viewers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.audiences {
		viewers += len(a.viewers)
	}
	return len(p.audiences), viewers
}

// errTooManyKinds reports that a link already has maxKinds audiences.
var errTooManyKinds = errors.New("viewers of this link use too many different versions and capabilities")

// joinLocked puts a viewer into the audience of its kind, which it creates if
// necessary.
func (p *Pool) joinLocked(v *Viewer, greeting string) (*audience, error) {
	k := kind{v.name, v.open.Authority(), greeting}
	a := p.audiences[k]
	if a == nil {
		same := 0
		for other := range p.audiences {
			if other.name == k.name {
				same++
			}
		}
		if same >= maxKinds {
			return nil, errTooManyKinds
		}
		var err error
		if a, err = p.openLocked(v, k); err != nil {
			return nil, err
		}
		p.audiences[k] = a
	}
	a.enter(v)
	return a, nil
}

// openLocked creates an audience and connects it to the host.
func (p *Pool) openLocked(v *Viewer, k kind) (*audience, error) {
	ctx, cancel := context.WithCancel(p.cfg.Life)
	a := &audience{
		pool: p, kind: k, clientID: "audience-" + strings.ToLower(rand.Text()), ctx: ctx, cancel: cancel,
		crowds: map[string]*crowd{}, feeds: map[string]*feed{}, requests: map[string]*sharedRequest{}, underWay: map[int64]*sharedRequest{},
	}
	open := v.open
	open.ID, open.Subject, open.Remote = strings.ToLower(rand.Text()[:12]), v.name, ""
	up, err := p.cfg.Open(open, (*inbox)(a))
	if err != nil {
		cancel()
		return nil, err
	}
	a.up = up
	a.greetHost()
	return a, nil
}

// forgetLocked removes an audience from the pool, so that no further viewer joins it.
func (p *Pool) forgetLocked(a *audience) {
	if p.audiences[a.kind] == a {
		delete(p.audiences, a.kind)
	}
}
