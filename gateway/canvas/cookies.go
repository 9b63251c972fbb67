package canvas

import (
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Cookies that a script of one canvas sets on the canvas domain are sent to all other canvases of that browser. Many and
// long ones make each request too long for the relay or the application (HTTP 431). A Cookie header does not tell
// who has set a cookie, and a canvas's own scripts set cookies, too. So up to spareCookies all cookies pass. Beyond,
// those pass that responses of this very origin have set, and of all others the first that fit: browsers send those
// first that are there longest.
//
// Each relay remembers the names that it has seen in responses. A relay that has just started, or another one, knows
// none: there the first cookies that fit pass, until the application sets its own again.

// Bounds of cookies.
const (
	// MaxCookies is how many bytes of cookies browsers send at most: 180 of a domain, with 4 KiB each. The header of a
	// request for a canvas may be so much longer as it comes.
	MaxCookies = maxCookies * 4 << 10

	spareCookies = 8 << 10 // bytes of cookies: applications take 16 KiB of header (Node's default)
	maxOrigins   = 4096    // whose cookies are remembered
	maxCookies   = 180     // of each

	maxOwnCookies = 8 // of the session: without https, other canvases of the domain can set the same name
)

// knownCookies remembers the names of the cookies that responses of each origin have set. It is safe for concurrent use.
type knownCookies struct {
	seed maphash.Seed

	mu      sync.Mutex                       // guards the field below
	origins *simplelru.LRU[string, []uint64] // hashes of names, the oldest first
}

func newKnownCookies() *knownCookies {
	k := &knownCookies{seed: maphash.MakeSeed()}
	k.origins, _ = simplelru.NewLRU[string, []uint64](maxOrigins, nil) // fails only without a limit
	return k
}

// add notes a cookie that a response of an origin has set. An origin's oldest name gives way to one too many.
func (k *knownCookies) add(origin, cookie string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	names, _ := k.origins.Get(origin)
	name := maphash.String(k.seed, cookie)
	if slices.Contains(names, name) {
		return
	}
	if len(names) >= maxCookies {
		names = names[1:]
	}
	k.origins.Add(origin, append(slices.Clone(names), name)) // what of has returned stays as it is
}

// of returns whether a response of an origin has set a cookie.
func (k *knownCookies) of(origin string) func(cookie string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	names, _ := k.origins.Get(origin)
	return func(cookie string) bool { return slices.Contains(names, maphash.String(k.seed, cookie)) }
}

// A cookie is one of a request, as it is written there.
type cookie struct{ name, text string }

// cookiesOf returns the cookies of a request, in their order.
func cookiesOf(h http.Header) (all []cookie) {
	for _, line := range h["Cookie"] {
		for text := range strings.SplitSeq(line, ";") {
			if text = strings.TrimSpace(text); text != "" {
				name, _, _ := strings.Cut(text, "=")
				all = append(all, cookie{strings.TrimSpace(name), text})
			}
		}
	}
	return all
}

// size returns the length of a cookie in a header, with what stands behind it.
func (c cookie) size() int { return len(c.text) + len("; ") }

// keepOnly keeps those cookies of a request that keep returns true for, which it asks in their order.
func keepOnly(h http.Header, keep func(cookie) bool) {
	var kept []string
	for _, c := range cookiesOf(h) {
		if keep(c) {
			kept = append(kept, c.text)
		}
	}
	h.Del("Cookie")
	if len(kept) > 0 {
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}

// dropForeignCookies drops cookies of a request for an origin if there are more than spareCookies: see above.
func (c *Canvases) dropForeignCookies(h http.Header, origin string) {
	own, known := c.Origin.cookieName(), c.cookies.of(origin)
	size, room, owns := 0, spareCookies, 0
	for _, one := range cookiesOf(h) {
		if one.name == own {
			continue
		}
		if size += one.size(); known(one.name) {
			room -= one.size()
		}
	}
	if size <= spareCookies && len(h["Cookie"]) <= 1 {
		return
	}
	keepOnly(h, func(one cookie) bool {
		switch {
		case one.name == own:
			owns++
			return owns <= maxOwnCookies
		case size <= spareCookies || known(one.name):
			return true
		case one.size() > room:
			return false
		}
		room -= one.size()
		return true
	})
}

// isTooLong reports whether the header of a request is longer than MaxHeader.
func (c *Canvases) isTooLong(r *http.Request) bool {
	if c.MaxHeader == 0 {
		return false
	}
	size := len(r.Method) + len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size > c.MaxHeader
}
