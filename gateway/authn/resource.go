package authn

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// ResourcePath begins the paths of the relay's metadata as a protected resource (RFC
// 9728). The resource's own path follows, such as /ahp/HOST.
const ResourcePath = "/.well-known/oauth-protected-resource"

// A resource is the metadata for a part of the relay: it names the servers that issue
// tokens.
type resource struct {
	Resource string   `json:"resource"`
	Name     string   `json:"resource_name"`
	Servers  []string `json:"authorization_servers,omitempty"`
	Methods  []string `json:"bearer_methods_supported"`
	Proofs   []string `json:"dpop_signing_alg_values_supported"`
}

// ServeResource responds with the metadata. The authorization servers are the external
// issuers whose tokens the relay accepts; the relay's own devices sign in without OAuth.
func (c *Checker) ServeResource(w http.ResponseWriter, r *http.Request) {
	WriteJSON(w, http.StatusOK, resource{
		Resource: c.URL(r) + strings.TrimPrefix(r.URL.EscapedPath(), ResourcePath), Name: "AHP relay",
		Servers: slices.Sorted(maps.Keys(c.Issuers)), Methods: []string{"header", "query"}, Proofs: []string{"ES256"},
	})
}
