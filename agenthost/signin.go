package agenthost

import (
	"fmt"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// A Resource is a protected resource of the agent: its OAuth metadata (RFC 9728) as
// clients see it.
type Resource struct {
	Resource string   `json:"resource"`
	Name     string   `json:"resource_name,omitempty"`
	Servers  []string `json:"authorization_servers,omitempty"`
	Scopes   []string `json:"scopes_supported,omitempty"`
	Required bool     `json:"required"`

	// Tokens are valid in authenticate.
	Tokens []string `json:"-"`
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
	h.mcp.signedIn[resource]++
	return true, nil
}

// driveSignIn runs the prompt "sign-in": it lists the sign-ins, and with a reason
// revokes them.
func (s *script) driveSignIn(reason string) {
	h := s.chat.session.host
	h.mu.Lock()
	var said []string
	for _, r := range h.cfg.Resources {
		said = append(said, fmt.Sprintf("%s: %d times", r.Resource, h.mcp.signedIn[r.Resource]))
		if reason != "" {
			h.notifyAllLocked("auth/required", message{"channel": encode(rootChannel), "resource": encode(r.Resource), "reason": encode(reason)})
		}
	}
	h.mu.Unlock()
	s.say("Signed in to " + strings.Join(said, ", "))
	s.complete()
}
