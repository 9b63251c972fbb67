package agenthost

import (
	"slices"

	"ahprelay/ahp"
)

// A Resource is a protected resource of the agent, described by its OAuth metadata (RFC
// 9728).
type Resource struct {
	Resource string   `json:"resource"`
	Name     string   `json:"resource_name,omitempty"`
	Servers  []string `json:"authorization_servers,omitempty"`
	Scopes   []string `json:"scopes_supported,omitempty"`
	Required bool     `json:"required"`

	// Client is the client id for the authorization servers, as in the state of MCP
	// servers.
	Client *OAuthClient `json:"oauthClient,omitempty"`

	// Tokens are the tokens that authenticate accepts.
	Tokens []string `json:"-"`
}

// An OAuthClient is a public client of authorization servers.
type OAuthClient struct {
	ID string `json:"clientId"`
}

// signInLocked checks a token for one of the agent's resources and does not store it.
// It reports whether the resource exists.
func (ms *mcpServers) signInLocked(resource, token string) (known bool, err error) {
	h := ms.host
	i := slices.IndexFunc(h.cfg.Resources, func(r Resource) bool { return r.Resource == resource })
	if i < 0 {
		return false, nil
	}
	if !slices.Contains(h.cfg.Resources[i].Tokens, token) {
		return true, &rpcError{Code: ahp.CodeAuthRequired, Message: "Authentication failed for resource: " + resource, Data: map[string][]Resource{"resources": {h.cfg.Resources[i]}}}
	}
	ms.signedIn[resource]++
	return true, nil
}
