package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"ahprelay/auth"
)

// A TenantTarget is a notification target for a whole tenant. It is set in the configuration of
// all relays. It receives events about the given hosts, and offers no answers.
type TenantTarget struct {
	Tenant string   `json:"tenant,omitempty"` // default: auth.DefaultTenant
	Hosts  []string `json:"hosts,omitempty"`  // default: all
	Target
}

// tenantSubject is the subject that owns tenants' targets. No token can have it.
const tenantSubject = "\x00the tenant"

// ReadTenantTargets decodes a JSON array of tenant targets. [Start] checks them.
func ReadTenantTargets(data []byte) (targets []TenantTarget, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&targets); err != nil {
		return nil, fmt.Errorf("want a JSON array of notification targets: %w", err)
	}
	for i := range targets {
		t := &targets[i]
		t.Tenant = cmp.Or(t.Tenant, auth.DefaultTenant)
		if len(t.Hosts) == 0 {
			t.Hosts = []string{auth.AllHosts}
		}
		sum := sha256.Sum256([]byte(strings.Join([]string{t.Tenant, string(t.Kind), t.URL, t.To, strings.Join(t.Hosts, " ")}, "\x00")))
		t.ID = "tenant" + hex.EncodeToString(sum[:8])
		t.Who = auth.Client{Tenant: t.Tenant, Hosts: t.Hosts, Access: auth.AccessRead}
		t.ofTenant = true
	}
	return targets, nil
}

// addTenantTargets checks and adds the tenants' targets. If an address is not
// permitted or does not resolve, it only logs a warning: each attempt checks the address again.
func (n *Notifier) addTenantTargets(ctx context.Context, targets []TenantTarget) error {
	for _, t := range targets {
		if err := n.check(ctx, &t.Target); errors.Is(err, errPrivate) {
			n.cfg.Log.Warn("address of a tenant's notification target not permitted or not found", "tenant", t.Tenant, "kind", string(t.Kind), "error", err)
		} else if err != nil {
			return fmt.Errorf("notification target of tenant %s, %s: %w", t.Tenant, t.Kind, err)
		}
		p := n.people[t.Tenant][tenantSubject]
		if p == nil {
			p = &Person{Tenant: t.Tenant, Subject: tenantSubject}
			n.putLocked(p)
		}
		p.Targets = append(p.Targets, t.Target)
	}
	return nil
}
