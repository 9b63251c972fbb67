package gateway

import (
	"net/http"

	web "ahprelay/console"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/canvas"
)

func console(canvases canvas.Origin) http.Handler {
	if canvases.Domain == "" {
		return web.Handler("")
	}
	return web.Handler(canvases.Of("*"))
}

// oauthClientPath serves the console's client metadata for authorization servers. Its URL
// is the console's client_id (draft-ietf-oauth-client-id-metadata-document).
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

// serveOAuthClient serves the console's client metadata, with URLs for the host name in
// the request.
func serveOAuthClient(w http.ResponseWriter, r *http.Request) {
	origin := "https://" + r.Host // authorization servers require https
	authn.WriteJSON(w, http.StatusOK, oauthClient{
		ID: origin + oauthClientPath, Name: "AHP relay", URI: origin, Redirects: []string{origin + "/signed-in.html"},
		Grants: []string{"authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"}, Responses: []string{"code"}, Method: "none",
	})
}
