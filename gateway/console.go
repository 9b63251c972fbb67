package gateway

import (
	"cmp"
	"fmt"
	"net/http"

	web "ahprelay/console"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/canvas"
)

// consolePolicy is the console's Content-Security-Policy. The console runs only its
// own scripts and styles, connects only to this relay, shows images that it has
// generated, and frames only the pages below and canvases at their own origins. Only
// the two named trusted-types policies turn text into markup or script: DOMPurify's,
// and the page's own, which knows its scripts by name.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
	"frame-src 'self'%s; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types console dompurify"

// framePolicies are the policies for pages that frame untrusted content, each in an
// opaque origin. A canvas rebuilt from resources that the console has read may run any
// script and reach no network. A canvas elsewhere on the web has a frame of its own.
// Terminal output is drawn in a page with no other content.
var framePolicies = map[string]string{
	"/canvas-inband.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; " +
		"style-src 'unsafe-inline' blob: data:; img-src blob: data:; font-src blob: data:; media-src blob: data:; connect-src blob: data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/canvas-direct.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
		"frame-src https: http://127.0.0.1:* http://localhost:* http://*.localhost:*; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	"/terminal.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
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

// console serves the web console. All users get the same files: the token is in the
// URL's fragment, which browsers do not send.
func console(canvases canvas.Origin) http.Handler {
	frames := ""
	if canvases.Domain != "" {
		frames = " " + canvases.Of("*")
	}
	own := fmt.Sprintf(consolePolicy, frames)
	files, err := web.Files()
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
		h.Set("X-DNS-Prefetch-Control", "off")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Opener-Policy", "same-origin") // opener and opened pages get no reference
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Permissions-Policy", "camera=(self), microphone=(self), geolocation=(), payment=(), usb=()") // frames get no camera and no microphone
		file, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		file.ServeHTTP(w, r)
	})
}

// oauthClientPath is the console's client metadata for authorization servers, and its
// client_id (draft-ietf-oauth-client-id-metadata-document).
const oauthClientPath = "/oauth-client.json"

// oauthClient is a public client, which has no secret (RFC 7591, section 2).
type oauthClient struct {
	ID        string   `json:"client_id"`
	Name      string   `json:"client_name"`
	URI       string   `json:"client_uri"`
	Redirects []string `json:"redirect_uris"`
	Grants    []string `json:"grant_types"`
	Responses []string `json:"response_types"`
	Method    string   `json:"token_endpoint_auth_method"`
}

// serveOAuthClient serves the console's client metadata for the requested name.
func serveOAuthClient(w http.ResponseWriter, r *http.Request) {
	origin := "https://" + r.Host // authorization servers require https
	authn.WriteJSON(w, http.StatusOK, oauthClient{
		ID: origin + oauthClientPath, Name: "AHP relay", URI: origin, Redirects: []string{origin + "/signed-in.html"},
		Grants: []string{"authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"}, Responses: []string{"code"}, Method: "none",
	})
}
