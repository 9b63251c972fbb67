package embedded

import (
	"net/netip"
	"slices"
	"sync"

	"ahprelay/internal/fair"
)

// maxStrangers is how many connections there may be that have not logged in.
const maxStrangers = 4096

// strangers are connections that have not logged in. One too many has the oldest end of
// the address that has most, and of several that have as many, the oldest of all: so who
// opens connections and says nothing takes the place of itself first, and who logs in at
// once, of nobody.
type strangers struct {
	mu    sync.Mutex // guards the fields below
	most  int
	count int
	turn  uint64                 // of the latest
	of    map[string][]*stranger // each address, the oldest first
}

type stranger struct {
	end  func()
	turn uint64
}

func newStrangers(most int) *strangers {
	return &strangers{most: most, of: map[string][]*stranger{}}
}

// enter takes a connection of an address, until met is called: at its end, or when it is
// none any more. end may be called before.
func (s *strangers) enter(address string, end func()) (met func()) {
	here := &stranger{end: end}
	s.mu.Lock()
	s.turn++
	here.turn = s.turn
	s.of[address] = append(s.of[address], here)
	s.count++
	var out *stranger
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

// oldestLocked takes one out that is to end.
func (s *strangers) oldestLocked() *stranger {
	var whose string
	var most []*stranger
	for address, list := range s.of {
		if len(list) > len(most) || len(list) == len(most) && list[0].turn < most[0].turn {
			whose, most = address, list
		}
	}
	out := most[0]
	s.leaveLocked(whose, out)
	return out
}

func (s *strangers) leaveLocked(address string, one *stranger) {
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

// addressOf is what a remote address counts as.
func addressOf(remote string) string {
	at, err := netip.ParseAddr(remote)
	if err != nil {
		return remote
	}
	return fair.Site(at)
}
