package console

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// consolePolicy is the console's Content-Security-Policy. The console runs only its
// own scripts and styles, connects only to its relay, shows its own images and those that
// it has generated, and frames only its own pages and canvases at their own origins. Only
// two trusted-types policies turn text into markup or script: DOMPurify's, and the page's
// own, which accepts only URLs of its scripts. The first %s stands for further
// sources to connect to, the second for further sources to frame, each after a space.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'%s; " +
	"frame-src 'self'%s; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types console dompurify"

// framePolicies are the policies for pages that show untrusted content, each in an opaque
// origin, and for two pages in the relay's origin. canvas-inband.html shows a canvas
// rebuilt from resources that the console has read: it may run any script, but reach no
// network. canvas-direct.html frames a canvas from a different server. terminal.html
// shows only a terminal's output, math.html a formula, and diagram.html a diagram.
var framePolicies = map[string]string{
	"/canvas-inband.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; " +
		"style-src 'unsafe-inline' blob: data:; img-src blob: data:; font-src blob: data:; media-src blob: data:; connect-src blob: data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/canvas-direct.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
		"frame-src https: http://127.0.0.1:* http://localhost:* http://*.localhost:*; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/terminal.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/math.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/diagram.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	// The pages below have this relay's origin and contain only their own script.
	// outside.html calls authorization servers on behalf of the console, which itself
	// connects to the relay alone; signed-in.html is the page to which those servers
	// return.
	"/outside.html": "default-src 'none'; script-src 'self'; connect-src https: http://127.0.0.1:* http://localhost:*; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'; require-trusted-types-for 'script'; trusted-types 'none'",
	"/signed-in.html": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
}

// headers are the header fields of each file, beside its policy.
var headers = map[string]string{
	"X-DNS-Prefetch-Control":       "off",
	"X-Content-Type-Options":       "nosniff",
	"Cross-Origin-Opener-Policy":   "same-origin", // pages of other origins that open this page, or that it opens, have no reference to it
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"Permissions-Policy":           "camera=(self), microphone=(self), geolocation=(), payment=(), usb=()", // frames get no camera and no microphone
}

// Handler serves the web console. frames is a further origin whose pages the console may
// frame, or "". All users get the same files, because the token is in the URL's fragment,
// which browsers do not send.
func Handler(frames string) http.Handler {
	policyWith := func(relays string) string {
		return fmt.Sprintf(consolePolicy, relays, strings.TrimRight(" "+frames, " "))
	}
	own := policyWith("")
	files, err := Files()
	if err != nil {
		panic(err) // the files are embedded
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		policy := cmp.Or(framePolicies[r.URL.Path], own)
		if r.URL.Path == appPage {
			policy = appPolicy(r.URL.Query(), r.Host)
		}
		h.Set("Content-Security-Policy", policy)
		for name, value := range headers {
			h.Set(name, value)
		}
		file, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if relays := furtherRelays(r); relays != "" && (r.URL.Path == "/" || r.URL.Path == "/sw.js" && r.URL.Query().Has("account")) {
			h.Set("Content-Security-Policy", policyWith(relays))
			file.serve(w, r, relays)
			return
		}
		file.ServeHTTP(w, r)
	})
}

// A person can add accounts at further relays to the page. The page's script names these
// relays in a cookie. From the next load on, the page's policy admits these relays, but
// only for this person. Each named relay decides itself whether it admits this page. The
// prefix __Host- prevents other sites of the domain from setting the cookie. Browsers
// accept such a cookie only over TLS, so pages on a loopback address use a cookie without
// the prefix.
const (
	relaysCookie         = "__Host-ahp-relays"
	relaysCookieLoopback = "ahp-relays"
	maxFurtherRelays     = 8
)

var relayOrigin = regexp.MustCompile(`^(https://[A-Za-z0-9.-]+|http://(localhost|127\.0\.0\.1|\[::1\]))(:[0-9]{1,5})?$`)

// furtherRelays returns the sources for the relays that a request's cookie names, each
// after a space.
func furtherRelays(r *http.Request) (sources string) {
	name := relaysCookie
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if ip := net.ParseIP(strings.Trim(host, "[]")); host == "localhost" || ip != nil && ip.IsLoopback() {
		name = relaysCookieLoopback
	}
	cookie, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	value, err := url.QueryUnescape(cookie.Value)
	if err != nil {
		return ""
	}
	for i, origin := range strings.Fields(value) {
		if i < maxFurtherRelays && relayOrigin.MatchString(origin) {
			sources += " " + origin + " ws" + strings.TrimPrefix(origin, "http")
		}
	}
	return sources
}
