package refhost

import (
	"fmt"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// A Resource is something that the agent needs a token for: OAuth's metadata of it
// (RFC 9728), as clients see it.
type Resource struct {
	Resource string   `json:"resource"`
	Name     string   `json:"resource_name,omitempty"`
	Servers  []string `json:"authorization_servers,omitempty"`
	Scopes   []string `json:"scopes_supported,omitempty"`
	Required bool     `json:"required"`

	// Tokens are those that authenticate takes.
	Tokens []string `json:"-"`
}

// signInLocked takes a token for a resource of the agent's, and does not keep it. It
// reports whether there is such a resource.
func (h *Host) signInLocked(resource, token string) (known bool, err error) {
	i := slices.IndexFunc(h.cfg.Resources, func(r Resource) bool { return r.Resource == resource })
	if i < 0 {
		return false, nil
	}
	if !slices.Contains(h.cfg.Resources[i].Tokens, token) {
		return true, &rpcError{Code: ahp.CodeAuthRequired, Message: "Authentication failed for resource: " + resource, Data: map[string][]Resource{"resources": {h.cfg.Resources[i]}}}
	}
	h.signedIn[resource]++
	return true, nil
}

// driveSignIn plays the prompt "sign-in": what has been signed in to, and, with a
// reason, that this has ended.
func (s *script) driveSignIn(reason string) {
	h := s.chat.session.host
	h.mu.Lock()
	var said []string
	for _, r := range h.cfg.Resources {
		said = append(said, fmt.Sprintf("%s: %d times", r.Resource, h.signedIn[r.Resource]))
		if reason != "" {
			h.notifyAllLocked("auth/required", message{"channel": encode(rootChannel), "resource": encode(r.Resource), "reason": encode(reason)})
		}
	}
	h.mu.Unlock()
	s.say("Signed in to " + strings.Join(said, ", "))
	s.complete()
}
