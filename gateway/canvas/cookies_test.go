package canvas

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// passed sends Cookie headers through the relay's filter for an origin, and returns the
// header that the application gets.
func passed(c *Canvases, origin string, lines ...string) string {
	h := http.Header{"Cookie": lines}
	c.dropForeignCookies(h, origin)
	keepOnly(h, func(one cookie) bool { return one.name != c.Origin.cookieName() })
	return h.Get("Cookie")
}

// bomb returns a Cookie header with count cookies, each with a value of size bytes.
func bomb(count, size int) string {
	var list []string
	for i := range count {
		list = append(list, fmt.Sprintf("bomb%d=%s", i, strings.Repeat("x", size)))
	}
	return strings.Join(list, "; ")
}

// A browser sends cookies set by responses, cookies set by scripts, and many long cookies
// planted by a different canvas. The relay passes on all cookies set by responses, and the
// rest only as far as the total stays within spareCookies bytes.
func TestForeignCookiesAreDroppedBeyondTheSpareRoom(t *testing.T) {
	c := New(Config{Origin: Origin{Scheme: "https", Domain: "canvas.example.com"}})
	c.cookies.add("one", "login")
	c.cookies.add("one", "large")
	session := "__Host-ahp-canvas=" + strings.Repeat("s", 2000)
	large := "large=" + strings.Repeat("y", 2*spareCookies)
	for _, test := range []struct{ name, cookies, want string }{
		{"few", "theme=dark; login=1", "theme=dark; login=1"},
		{"in several headers", "theme=dark", "theme=dark"},
		{"a bomb", "theme=dark; " + bomb(180, 4000) + "; login=1", "theme=dark; " + bomb(2, 4000) + "; login=1"},
		{"what responses have set is longer", "theme=dark; " + large + "; login=1", large + "; login=1"},
		{"odd ones", "=; ;a; =b;login", "=; a; =b; login"},
	} {
		if got := passed(c, "one", session+"; "+test.cookies); got != test.want {
			t.Errorf("%s: got %.80q of %d bytes; want %.80q", test.name, got, len(got), test.want)
		}
	}
	if got := passed(c, "one", "a=1", "b=2; login=3"); got != "a=1; b=2; login=3" {
		t.Errorf("cookies in two headers, as HTTP/2 sends them: %q; want a=1; b=2; login=3", got)
	}
	if got := passed(c, "two", bomb(60, 4000)+"; login=1"); strings.Count(got, "bomb") != 2 || !strings.HasSuffix(got, "; login=1") {
		t.Errorf("cookies for an origin without known cookies: %.40q, %d bytes; want two foreign cookies and login=1", got, len(got))
	}
}

// Without https, a canvas plants many long session cookies for all canvases. The relay passes on
// maxOwnCookies of them, the oldest first, so that the request's header is not too long.
func TestPlantedSessionCookiesAreDropped(t *testing.T) {
	c := New(Config{Origin: Origin{Scheme: "http", Domain: "canvas.example.com"}})
	h := http.Header{"Cookie": {"ahp-canvas=own; theme=dark" + strings.Repeat("; ahp-canvas="+strings.Repeat("x", 4000), 100)}}
	c.dropForeignCookies(h, "one")
	kept := cookiesOf(h)
	if len(kept) != maxOwnCookies+1 || kept[0].text != "ahp-canvas=own" || kept[1].text != "theme=dark" {
		t.Errorf("%d cookies pass; want the own session, the theme, and %d planted sessions", len(kept), maxOwnCookies-1)
	}
}

// An application sets more cookies than browsers keep. The relay forgets the oldest
// names above maxCookies, and the oldest origins above maxOrigins.
func TestKnownCookiesAreBounded(t *testing.T) {
	k := newKnownCookies()
	for i := range maxCookies + 1 {
		k.add("one", fmt.Sprint(i))
		k.add("one", fmt.Sprint(i))
	}
	known := k.of("one")
	if known("0") || !known("1") || !known(fmt.Sprint(maxCookies)) {
		t.Error("the cookies known for an origin must be all but the oldest")
	}
	for i := range maxOrigins {
		k.add(fmt.Sprint("origin ", i), "a")
	}
	if k.of("one")("1") {
		t.Error("the cookies of the oldest origin are still known; want them forgotten beyond the bound")
	}
}

// The cookies passed on are a subsequence of the request's. The canvas session's cookie
// and cookies set by responses pass, and all others together fit into spareCookies
// bytes.
func FuzzForeignCookies(f *testing.F) {
	f.Add("a=1; b=2", "login=1", uint16(3))
	f.Add(";; =;x", "__Host-ahp-canvas=1;login", uint16(9000))
	f.Fuzz(func(t *testing.T, one, two string, long uint16) {
		c := New(Config{Origin: Origin{Scheme: "https", Domain: "canvas.example.com"}})
		c.cookies.add("o", "login")
		h := http.Header{"Cookie": {one, two + "; z=" + strings.Repeat("z", int(long)), "__Host-ahp-canvas=s; login=1"}}
		before := cookiesOf(h)
		c.dropForeignCookies(h, "o")
		after := cookiesOf(h)
		rest, others := before, 0
		for _, kept := range after {
			i := slices.Index(rest, kept)
			if i < 0 {
				t.Fatalf("the cookie %q passes, but did not come, or out of order: %q from %q", kept, after, before)
			}
			rest = rest[i+1:]
			if kept.name != "login" && kept.name != c.Origin.cookieName() {
				others += kept.size()
			}
		}
		if others > spareCookies {
			t.Errorf("%d bytes of cookies pass which no response has set; want at most %d", others, spareCookies)
		}
		if last := before[len(before)-2:]; !slices.Contains(after, last[1]) || len(before) < maxOwnCookies && !slices.Contains(after, last[0]) {
			t.Errorf("of the sent cookies %q, %q pass; want the last one always, and the one before it while there is room", before, after)
		}
	})
}
