package embedded

import (
	"net/netip"
	"slices"
	"sync"

	"ahprelay/internal/fair"
)

// maxUnauthenticated bounds the connections that have not logged in.
const maxUnauthenticated = 4096

// unauthenticated is the table of connections that have not logged in. Beyond the
// limit, the oldest connection of the busiest address is closed: a flood evicts
// itself, and a client that logs in at once evicts no other.
type unauthenticated struct {
	mu    sync.Mutex // guards the fields below
	most  int
	count int
	turn  uint64                    // of the latest
	of    map[string][]*pendingConn // by address, oldest first
}

type pendingConn struct {
	end  func()
	turn uint64
}

func newUnauthenticated(most int) *unauthenticated {
	return &unauthenticated{most: most, of: map[string][]*pendingConn{}}
}

// enter adds a connection of an address until done is called: at its end, or after its
// login. end may be called before.
func (s *unauthenticated) enter(address string, end func()) (done func()) {
	here := &pendingConn{end: end}
	s.mu.Lock()
	s.turn++
	here.turn = s.turn
	s.of[address] = append(s.of[address], here)
	s.count++
	var out *pendingConn
	if s.count > s.most {
		out = s.oldestLocked()
	}
	s.mu.Unlock()
	if out != nil {
		out.end()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leaveLocked(address, here)
	}
}

// oldestLocked removes and returns the connection to close.
func (s *unauthenticated) oldestLocked() *pendingConn {
	var whose string
	var most []*pendingConn
	for address, list := range s.of {
		if len(list) > len(most) || len(list) == len(most) && list[0].turn < most[0].turn {
			whose, most = address, list
		}
	}
	out := most[0]
	s.leaveLocked(whose, out)
	return out
}

func (s *unauthenticated) leaveLocked(address string, one *pendingConn) {
	list := s.of[address]
	i := slices.Index(list, one)
	if i < 0 {
		return
	}
	s.count--
	if len(list) == 1 {
		delete(s.of, address)
		return
	}
	s.of[address] = slices.Delete(list, i, i+1)
}

// addressOf returns the key of a remote address.
func addressOf(remote string) string {
	at, err := netip.ParseAddr(remote)
	if err != nil {
		return remote
	}
	return fair.Site(at)
}
