package notify

import (
	"log/slog"
	"net/netip"
	"net/url"
	"sync"

	"ahprelay/broker/store"
)

// publicURLRecord is the record with the learned public URL.
const publicURLRecord = "public.url"

// A publicURL is the relays' public base URL, for links. If it is not configured, the
// relays use the address at which the first device of a relay's owner reached them, and
// share it.
type publicURL struct {
	configured string
	records    Records
	log        *slog.Logger

	mu      sync.Mutex // guards learned
	learned string
}

// get returns the URL without a slash at its end, or "" if it is not known yet.
func (p *publicURL) get() string {
	if p.configured != "" {
		return p.configured
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.learned
}

// learn records the address at which an owner's device has reached the relay, if no address
// is known and other devices can use this one.
func (p *publicURL) learn(address string) {
	if p.get() != "" || !isPublicURL(address) {
		return
	}
	fresh := false
	err := p.records.Update(publicURLRecord, func(old []byte) ([]byte, error) {
		if fresh = old == nil; !fresh {
			return old, nil
		}
		return []byte(address), nil
	})
	switch {
	case err != nil:
		p.log.Warn("public address not stored", "url", address, "error", err) // the device's next request learns it
	case fresh:
		p.log.Info("public address learned from the owner's device", "url", address, "hint", "--public-url sets a different address")
	}
}

// isPublicURL reports whether other devices can use a URL, so that it is suitable for
// links.
func isPublicURL(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "localhost" || u.Path != "" || u.User != nil {
		return false
	}
	at, err := netip.ParseAddr(u.Hostname())
	return err != nil || !at.IsLoopback()
}

func (p *publicURL) apply(r store.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learned = string(r.Data)
}
