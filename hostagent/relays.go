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

// relays holds the base URLs of one cluster's relays. Each host has an order of its own,
// computed from its name. This order spreads host-agents over the relays, and the host-agents
// of a failed relay over all other relays.
type relays struct {
	home string // the first relay in this host's order

	mu   sync.Mutex
	urls []string // in the order of attempts; the relay that answered last is the first
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

// Times for the return to the first relay.
const (
	homeEvery  = time.Minute // interval in which the first relay is checked, plus a random delay of up to the same time
	homeChecks = 2           // consecutive successful checks before the return
)

// goHome moves a host-agent back to its first relay when that relay is ready again,
// until ctx ends. Without it, a rolling restart would leave most host-agents at the
// relay that restarted first, and none at the last. Clients do not notice the move.
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
		if looks++; looks == homeChecks {
			looks = 0
			move()
		}
	}
}

func (r *relays) inOrder() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.urls)
}

// answered puts a relay that answered first in the order of attempts. The relays that
// were before it become the last.
func (r *relays) answered(relay string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.urls, relay); i > 0 {
		r.urls = slices.Concat(r.urls[i:], r.urls[:i])
	}
}

// checkRelays returns an error unless urls are base URLs of relays. Unless plain is true,
// unencrypted connections to them, and to the NATS servers, may only be on this machine.
func checkRelays(urls, nats []string, plain bool) error {
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
			return errors.New("relay: want either http:// or https:// for all relays; a single unencrypted relay exposes the host")
		}
	}
	if plain {
		return nil
	}
	return checkPlain(urls, nats)
}

// checkPlain returns an error for a relay or NATS URL without encryption beyond this
// machine: the network could read and change tokens and messages.
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
				continue // other errors are reported elsewhere
			}
			return fmt.Errorf("%s %s://%s: the connection, including the token, would not be encrypted; want %s, or --relay-plain on a private network", list.what, u.Scheme, u.Host, list.want)
		}
	}
	return nil
}

// isLoopback reports whether a URL's host is localhost or a loopback address.
func isLoopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.Unmap().IsLoopback()
}

// natsURL returns the URL of NATS behind a relay.
func natsURL(relay string) string {
	return "ws" + strings.TrimPrefix(strings.TrimRight(relay, "/"), "http") + "/nats"
}

// share returns a context with an equal part of the remaining time for one of n
// attempts, or with relayTimeout if ctx has no deadline.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	deadline, limited := ctx.Deadline()
	if !limited {
		return context.WithTimeout(ctx, relayTimeout)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(n))
}

// joined returns why no relay granted a request. The error is temporary unless all
// relays refused.
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
