package canvas

import (
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// A canvas's scripts can set cookies for the whole canvas domain, which browsers then
// send to all other canvases. If these cookies are many or long, the relay or the
// application refuses requests as too long (HTTP 431). A Cookie header does not show
// which origin set a cookie, and the canvas's own scripts set cookies too. So the relay
// forwards all cookies if they are not longer than spareCookies. Otherwise it forwards
// the cookies set by responses from this origin, and the first other cookies that fit.
// These are the oldest, because browsers send the oldest first.
//
// Each relay remembers the cookie names in responses. After a start it knows none, and
// forwards the first cookies that fit until the application sets its own again.

// Bounds of cookies.
const (
	// MaxCookies is the longest Cookie header that browsers send, in bytes: 180 cookies
	// per domain, with 4 KiB each. Headers of requests for canvases may be longer by this
	// amount.
	MaxCookies = maxCookies * 4 << 10

	spareCookies = 8 << 10 // bytes; by default, Node accepts a header of 16 KiB
	maxOrigins   = 4096    // remembered origins
	maxCookies   = 180     // remembered names per origin

	maxOwnCookies = 8 // session cookies in a request; without https, other canvases can set the same name
)

// knownCookies remembers the names of cookies that responses from each origin have set.
// It is safe for concurrent use.
type knownCookies struct {
	seed maphash.Seed

	mu      sync.Mutex                       // guards the field below
	origins *simplelru.LRU[string, []uint64] // hashes of cookie names, oldest first
}

func newKnownCookies() *knownCookies {
	k := &knownCookies{seed: maphash.MakeSeed()}
	k.origins, _ = simplelru.NewLRU[string, []uint64](maxOrigins, nil) // fails only without a limit
	return k
}

// add records a cookie that a response from an origin sets. Beyond maxCookies, it forgets
// the origin's oldest name.
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
	k.origins.Add(origin, append(slices.Clone(names), name)) // k.of's callers still use the old slice
}

// of returns a function that reports whether a response from the origin has set a cookie.
func (k *knownCookies) of(origin string) func(cookie string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	names, _ := k.origins.Get(origin)
	return func(cookie string) bool { return slices.Contains(names, maphash.String(k.seed, cookie)) }
}

// A cookie is a cookie in a request: its name, and its text with name and value.
type cookie struct{ name, text string }

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

// size returns a cookie's length in a header, with separator.
func (c cookie) size() int { return len(c.text) + len("; ") }

// keepOnly removes the cookies for which keep returns false. It calls keep in order.
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

// dropForeignCookies removes cookies from a request as described above, if they are
// longer than spareCookies. Of the session cookies, it leaves maxOwnCookies.
func (c *Canvases) dropForeignCookies(h http.Header, origin string) {
	own, known := c.Origin.cookieName(), c.cookies.of(origin)
	size, room, owns := 0, spareCookies, 0
	for _, one := range cookiesOf(h) {
		if one.name == own {
			owns++
			continue
		}
		if size += one.size(); known(one.name) {
			room -= one.size()
		}
	}
	if size <= spareCookies && owns <= maxOwnCookies && len(h["Cookie"]) <= 1 {
		return
	}
	owns = 0
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

// isTooLong reports whether a request's header exceeds MaxHeader.
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
