package hostagent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// relays are the base URLs of the relays of one cluster. Each host has them in an order
// of its own, which is always the same: so many host-agents do not all turn to the same
// relay, and those of one that is away are spread over all others.
type relays struct {
	home string // the first in that order

	mu   sync.Mutex
	urls []string // the one that answered last is the first
}

func newRelays(urls []string, tenant, host string) *relays {
	urls = slices.Clone(urls)
	weight := func(url string) uint64 {
		sum := sha256.Sum256([]byte(tenant + "\x00" + host + "\x00" + url))
		return binary.BigEndian.Uint64(sum[:])
	}
	slices.SortFunc(urls, func(a, b string) int { return cmp.Compare(weight(b), weight(a)) })
	return &relays{home: urls[0], urls: urls}
}

// Times of going home.
const (
	homeEvery = time.Minute // it is looked whether the first relay takes host-agents again; up to as long again later
	homeLooks = 2           // so often, one after the other, it must have
)

// goHome has a host-agent go back to its first relay when that is there again, until ctx
// ends: else, after one relay after the other was restarted, most would be at the first
// of these, and none at the last. Clients notice nothing of it.
func goHome(ctx context.Context, away, ready func() bool, move func()) {
	looks := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(homeEvery + rand.N(homeEvery)):
		}
		if !away() || !ready() {
			looks = 0
			continue
		}
		if looks++; looks == homeLooks {
			looks = 0
			move()
		}
	}
}

// inOrder returns which relays to try, one after the other.
func (r *relays) inOrder() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.urls)
}

// answered notes that a relay can be reached. Those before it could not: they
// are tried last.
func (r *relays) answered(relay string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.urls, relay); i > 0 {
		r.urls = slices.Concat(r.urls[i:], r.urls[:i])
	}
}

// checkRelays reports why these are not the base URLs of relays.
func checkRelays(urls []string) error {
	if len(urls) == 0 {
		return errors.New("relay: no URL given; want http://host:port or https://host")
	}
	for _, u := range urls {
		if err := checkRelay(u); err != nil {
			return err
		}
	}
	secure := strings.HasPrefix(urls[0], "https://")
	for _, u := range urls[1:] {
		if strings.HasPrefix(u, "https://") != secure {
			return errors.New("relay: want either http:// or https:// for all relays; one way in that is not encrypted spoils the others")
		}
	}
	return nil
}

// checkPlain reports which of the URLs of relays and of NATS leads over a network
// without encryption. The tokens that go there, and all that host and clients
// say, could be read and changed on the way.
func checkPlain(relays, nats []string) error {
	for _, list := range []struct {
		what, want, plain string
		urls              []string
	}{
		{"relay", "https://", "http://", relays},
		{"NATS", "tls:// or wss://", "nats:// ws://", nats},
	} {
		for _, text := range list.urls {
			u, err := url.Parse(text)
			if err != nil || !slices.Contains(strings.Fields(list.plain), u.Scheme+"://") || isLoopback(u.Hostname()) {
				continue // what else is wrong with it is said elsewhere
			}
			return fmt.Errorf("%s %s://%s: nothing is encrypted on the way there, the token neither; want %s, or --relay-plain where the network is private", list.what, u.Scheme, u.Host, list.want)
		}
	}
	return nil
}

// isLoopback reports whether a URL's host is this machine, as far as can be told
// without DNS.
func isLoopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.Unmap().IsLoopback()
}

// natsURL is where NATS is behind a relay.
func natsURL(relay string) string {
	return "ws" + strings.TrimPrefix(strings.TrimRight(relay, "/"), "http") + "/nats"
}

// share returns a context with as much of the time that is left as one of n
// may take. The last one may take all of it.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	deadline, limited := ctx.Deadline()
	if !limited {
		return context.WithTimeout(ctx, relayTimeout)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(n))
}

// joined is why no relay gave credentials. Unless all of them refuse, another
// attempt may succeed.
func joined(failures []error) error {
	if len(failures) == 1 {
		return failures[0]
	}
	texts := make([]string, len(failures))
	for i, err := range failures {
		texts[i] = err.Error()
	}
	text := strings.Join(texts, "; ")
	if slices.ContainsFunc(failures, temporary) {
		return errors.New(text)
	}
	return fmt.Errorf("%s%w", strings.TrimSuffix(text, texts[len(texts)-1]), failures[len(failures)-1])
}
