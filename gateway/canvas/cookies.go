package canvas

import (
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Scripts of a canvas can set cookies on the canvas domain, which the browser then
// sends to all other canvases. Many or long cookies make requests too long for the
// relay or the application (HTTP 431). A Cookie header does not show the origin of a
// cookie, and a canvas's own scripts set cookies too. So all cookies pass up to
// spareCookies. Above, these pass: cookies set by responses from this origin, and the
// first others that fit, because browsers send the oldest first.
//
// Each relay remembers the cookie names seen in responses. A newly started relay knows
// none: there the first cookies that fit pass, until the application sets its own
// again.

// Bounds of cookies.
const (
	// MaxCookies is the most that browsers send in cookies, in bytes: 180 per domain,
	// with 4 KiB each. The header of a request for a canvas may be longer by this
	// much.
	MaxCookies = maxCookies * 4 << 10

	spareCookies = 8 << 10 // bytes of cookies: applications accept 16 KiB of header (Node's default)
	maxOrigins   = 4096    // origins with remembered cookies
	maxCookies   = 180     // per origin

	maxOwnCookies = 8 // session cookies: without https, other canvases of the domain can set the same name
)

// knownCookies remembers the names of cookies set by each origin's responses. It is
// safe for concurrent use.
type knownCookies struct {
	seed maphash.Seed

	mu      sync.Mutex                       // guards the field below
	origins *simplelru.LRU[string, []uint64] // hashes of names, oldest first
}

func newKnownCookies() *knownCookies {
	k := &knownCookies{seed: maphash.MakeSeed()}
	k.origins, _ = simplelru.NewLRU[string, []uint64](maxOrigins, nil) // fails only without a limit
	return k
}

// add records a cookie set by an origin's response. Above maxCookies it drops the
// origin's oldest name.
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
	k.origins.Add(origin, append(slices.Clone(names), name)) // callers of of still use the old slice
}

// of returns a function that reports whether a response of an origin has set a cookie.
func (k *knownCookies) of(origin string) func(cookie string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	names, _ := k.origins.Get(origin)
	return func(cookie string) bool { return slices.Contains(names, maphash.String(k.seed, cookie)) }
}

// A cookie is a cookie as written in a request.
type cookie struct{ name, text string }

// cookiesOf returns a request's cookies in order.
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

// size returns a cookie's length in a header, with its separator.
func (c cookie) size() int { return len(c.text) + len("; ") }

// keepOnly removes a request's cookies for which keep returns false. It calls keep in
// order.
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

// dropForeignCookies drops cookies from a request for an origin if there are more than
// spareCookies: see above.
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

// isTooLong reports whether a request's header is longer than MaxHeader.
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
