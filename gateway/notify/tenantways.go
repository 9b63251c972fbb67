package notify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"ahprelay/auth"
)

// A TenantWay is one of a tenant, set by its owner where the relays are configured: the same at
// all of them. It is told of all hosts of the tenant that it names, and nobody answers by it.
type TenantWay struct {
	Tenant string   `json:"tenant,omitempty"` // default: auth.DefaultTenant
	Hosts  []string `json:"hosts,omitempty"`  // default: all
	Way
}

// tenantSubject has the ways of tenants. No token is for it.
const tenantSubject = "\x00the tenant"

// ReadTenantWays reads a JSON array of them.
func ReadTenantWays(data []byte) (ways []TenantWay, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&ways); err != nil {
		return nil, fmt.Errorf("want a JSON array of ways: %w", err)
	}
	for i := range ways {
		w := &ways[i]
		if w.Tenant == "" {
			w.Tenant = auth.DefaultTenant
		}
		if len(w.Hosts) == 0 {
			w.Hosts = []string{auth.AllHosts}
		}
		switch {
		case w.Kind == WebPush:
			return nil, fmt.Errorf("way %d: a browser is one person's", i+1)
		case w.Kind == Webhook && w.Secret == "":
			return nil, fmt.Errorf("way %d: secret: a webhook wants one, whsec_…, the same at all relays", i+1)
		}
		sum := sha256.Sum256([]byte(strings.Join([]string{w.Tenant, string(w.Kind), w.URL, w.To, strings.Join(w.Hosts, " ")}, "\x00")))
		w.ID = "tenant" + hex.EncodeToString(sum[:8])
		w.Who = auth.Client{Tenant: w.Tenant, Hosts: w.Hosts, Access: auth.AccessRead}
		w.ofTenant = true
	}
	return ways, nil
}

// takeTenantWays checks the ways of tenants. Where one leads may not be known yet: that is looked
// at again with each message.
func (t *Teller) takeTenantWays(ctx context.Context, ways []TenantWay) error {
	for _, w := range ways {
		if err := t.check(ctx, &w.Way); errors.Is(err, errPrivate) {
			t.cfg.Log.Warn("a way of a tenant cannot be reached now", "tenant", w.Tenant, "kind", string(w.Kind), "error", err)
		} else if err != nil {
			return fmt.Errorf("way of tenant %s, %s: %w", w.Tenant, w.Kind, err)
		}
		p := t.people[w.Tenant][tenantSubject]
		if p == nil {
			p = &Person{Tenant: w.Tenant, Subject: tenantSubject}
			t.putLocked(p)
		}
		p.Ways = append(p.Ways, w.Way)
	}
	return nil
}

// standing returns what is told in a way now; false: nothing any more.
func (t *Teller) standing(w *Way) (auth.Client, bool) {
	if w.ofTenant {
		return w.Who, true
	}
	return t.cfg.Standing(w.Who)
}
