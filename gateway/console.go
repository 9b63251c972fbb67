package gateway

import (
	"cmp"
	"fmt"
	"net/http"

	web "ahprelay/console"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/canvas"
)

// consolePolicy lets the console run its own scripts and style, talk to this
// relay, show pictures that it has made itself, and frame the pages below and
// canvases at their own origins; nothing else. Text becomes markup or script only by the two policies that are
// named: DOMPurify's, and the page's own, which knows its scripts by name.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
	"frame-src 'self'%s; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types console dompurify"

// framePolicies are those of pages that stand around what is not to be
// trusted: each has an origin of its own, not this one. A canvas that is rebuilt
// from what the console reads runs whatever script it likes and reaches no
// network; one that is somewhere else on the web is in a frame of its own; what
// programs print is drawn where there is nothing else.
var framePolicies = map[string]string{
	"/canvas-inband.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; " +
		"style-src 'unsafe-inline' blob: data:; img-src blob: data:; font-src blob: data:; media-src blob: data:; connect-src blob: data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/canvas-direct.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
		"frame-src https: http://127.0.0.1:* http://localhost:* http://*.localhost:*; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/terminal.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	// Those that follow have this relay's origin, and nothing in them but their own
	// script: one asks authorization servers for the console, which talks to the relay
	// alone, and people come back to the other from there.
	"/outside.html": "default-src 'none'; script-src 'self'; connect-src https: http://127.0.0.1:* http://localhost:*; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'; require-trusted-types-for 'script'; trusted-types 'none'",
	"/signed-in.html": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
}

// console serves the web console. It is the same for everybody: the token is
// in the fragment of the URL, which browsers do not send.
func console(canvases canvas.Origin) http.Handler {
	frames := ""
	if canvases.Domain != "" {
		frames = " " + canvases.Of("*")
	}
	own := fmt.Sprintf(consolePolicy, frames)
	files, err := web.Files()
	if err != nil {
		panic(err) // they are embedded
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		policy := cmp.Or(framePolicies[r.URL.Path], own)
		if r.URL.Path == appPage {
			policy = appPolicy(r.URL.Query(), r.Host)
		}
		h.Set("Content-Security-Policy", policy)
		h.Set("X-DNS-Prefetch-Control", "off")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Opener-Policy", "same-origin") // who opens it, or is opened by it, has no hold on it
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Permissions-Policy", "camera=(self), microphone=(), geolocation=(), payment=(), usb=()") // the camera is for no frame
		file, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		file.ServeHTTP(w, r)
	})
}

// oauthClientPath is where authorization servers read what the console is there, and its
// client_id: draft-ietf-oauth-client-id-metadata-document.
const oauthClientPath = "/oauth-client.json"

// oauthClient is a client that can keep no secret (RFC 7591, section 2).
type oauthClient struct {
	ID        string   `json:"client_id"`
	Name      string   `json:"client_name"`
	URI       string   `json:"client_uri"`
	Redirects []string `json:"redirect_uris"`
	Grants    []string `json:"grant_types"`
	Responses []string `json:"response_types"`
	Method    string   `json:"token_endpoint_auth_method"`
}

// serveOAuthClient tells of the console as it is reached by the name that is asked for.
func serveOAuthClient(w http.ResponseWriter, r *http.Request) {
	origin := "https://" + r.Host // no others are believed
	authn.WriteJSON(w, http.StatusOK, oauthClient{
		ID: origin + oauthClientPath, Name: "AHP relay", URI: origin, Redirects: []string{origin + "/signed-in.html"},
		Grants: []string{"authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"}, Responses: []string{"code"}, Method: "none",
	})
}
