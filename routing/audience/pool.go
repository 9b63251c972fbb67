package audience

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/lockorder"
	"ahprelay/routing"
)

// Bounds of audiences. What is full is answered with error 4290, or by closing the
// viewer with 1013.
const (
	maxKinds         = 16      // audiences of one name
	maxChannels      = 4096    // of an audience: a view of the host knows no more
	maxSubscriptions = 1024    // channels of a viewer
	maxAsked         = 64      // requests of a viewer without an answer
	maxUnderWay      = 256     // requests of an audience at the host; more wait in turn
	maxHeldBytes     = 8 << 20 // of what a viewer is kept until its snapshot is there
	maxHeldItems     = 1 << 16
)

const (
	// spacing is the least time between two requests that ask the host the same: who
	// asks meanwhile gets the answer to the second.
	spacing = 50 * time.Millisecond

	// linger is how long the host is listened to for nobody: viewers come back.
	linger = 10 * time.Second
)

// An Upstream is the connection of an audience to the host. *[routing.RelayConn] is
// one.
type Upstream interface {
	// Send queues a message for the host, and waits while the host takes too little.
	Send(ctx context.Context, message []byte) error

	// Written gives back the credit of frames.
	Written(credit int)

	// Close ends the connection behind what was sent.
	Close(code ahp.CloseCode, reason string)
}

// A Config is what a Pool needs.
type Config struct {
	// Open has the host-agent make a connection, as [routing.RelayEnd.Open] does. What
	// comes of it is told to the client, from another goroutine.
	Open func(open routing.Open, client routing.ClientConn) (Upstream, error)

	// Encode returns a message, or a piece of one, as output for viewers, as
	// [routing.RelayEndConfig] says; Decode reads what it has made, some pieces in a
	// row. Whole is the piece as it was encoded.
	Encode func(piece []byte, first, last, binary bool) []byte
	Decode func(encoded []byte, piece func(payload, whole []byte, first, last, binary bool))

	// Deflate is Encode, compressed: by itself, so that pieces that were compressed at
	// different times make a message. Nil: nothing is.
	Deflate func(piece []byte, first, last, binary bool) []byte

	Life   context.Context   // ends what waits for a host
	Spawn  func(func()) bool // starts a goroutine; false: no more
	Queued func(n int)       // is told how many bytes more, or less, wait for the host; nil: nobody
	Kept   func(n int)       // the same of what is kept for viewers
	Memory *Memory           // of viewers that come again; may be that of several pools
}

// A Pool has the audiences of one host, on one link. It is safe for concurrent use.
type Pool struct {
	cfg Config

	mu        lockorder.Mutex[lockorder.Audience] // guards all that follows, audiences and viewers
	audiences map[kind]*audience
}

// A kind is what viewers of one audience have in common.
type kind struct {
	name      string // of the link that they have come by
	authority string // what that allows, see [routing.Open.Authority]
	greeting  string // what they say of themselves in initialize
}

// New returns a Pool without audiences.
func New(cfg Config) *Pool {
	for _, told := range []*func(int){&cfg.Queued, &cfg.Kept} {
		if *told == nil {
			*told = func(int) {}
		}
	}
	if cfg.Memory == nil {
		cfg.Memory = NewMemory()
	}
	return &Pool{cfg: cfg, audiences: map[kind]*audience{}}
}

// Enter returns a viewer of the audience with a name: open says what it may do, and
// is the connection at the host once there is one. The client is told Opened at once,
// and Ready with the answer to initialize or reconnect. Its methods are called under
// locks of this package, and must not call back. Deflates says that it takes what is compressed, and
// gains by that.
func (p *Pool) Enter(name string, open routing.Open, client routing.ClientConn, deflates bool) *Viewer {
	v := &Viewer{pool: p, name: name, open: open, client: client, deflates: deflates, subscriptions: map[string]*subscription{}}
	client.Event(routing.Opened)
	return v
}

// Stats returns how many audiences and viewers there are.
func (p *Pool) Stats() (audiences, viewers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.audiences {
		viewers += len(a.viewers)
	}
	return len(p.audiences), viewers
}

// errTooManyKinds reports a viewer of one kind too many.
var errTooManyKinds = errors.New("too many kinds of viewers of this link")

// joinLocked puts a viewer into the audience of its kind, which is made if need be.
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

// openLocked makes an audience, and its connection to the host.
func (p *Pool) openLocked(v *Viewer, k kind) (*audience, error) {
	ctx, cancel := context.WithCancel(p.cfg.Life)
	a := &audience{
		pool: p, kind: k, clientID: "audience-" + strings.ToLower(rand.Text()), ctx: ctx, cancel: cancel,
		feeds: map[string]*feed{}, requests: map[string]*sharedRequest{}, underWay: map[int64]*sharedRequest{},
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

// forgetLocked has no viewer join an audience any more.
func (p *Pool) forgetLocked(a *audience) {
	if p.audiences[a.kind] == a {
		delete(p.audiences, a.kind)
	}
}
