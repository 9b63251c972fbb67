package registry

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestTenantAdmitsHostsUpToItsLimit admits hosts of tenants with different limits. A tenant must
// admit as many hosts as its limit, each repeatedly, and another when a host is released. Further
// hosts must be refused with a FullError, and counted. A tenant without a limit must admit all.
func TestTenantAdmitsHostsUpToItsLimit(t *testing.T) {
	t.Parallel()
	r := startTest(t, newTestServer(t), Config{HostLimits: map[string]int{"acme": 2, "free": 0, EveryTenant: 1}})
	admit := func(tenant string, host int) error {
		t.Helper()
		key, err := auth.NewAgentKey()
		if err != nil {
			t.Fatal(err)
		}
		e := auth.Enrolment{ID: fmt.Sprint(tenant, host), Tenant: tenant, Host: fmt.Sprint("host-", host), IssuedAt: time.Now()}
		return r.Admit(t.Context(), e, key.Public(), time.Now().Add(time.Hour))
	}
	var full *FullError
	for range 3 {
		for host := range 2 {
			if err := admit("acme", host); err != nil {
				t.Fatalf("host %d of 2: %v; want it admitted", host, err)
			}
		}
		if err := admit("acme", 2); !errors.As(err, &full) || *full != (FullError{"acme", 2}) {
			t.Fatalf("a third host: %v; want a FullError", err)
		}
	}
	if _, known := r.Lookup("acme", "host-2"); known {
		t.Error("the refused host is enrolled; want it unknown")
	}
	if n := r.Stats().Full; n != 3 {
		t.Errorf("the registry counts %d refused hosts; want 3", n)
	}
	for _, op := range []leaseOp{opHold, opRelease} {
		seq := map[leaseOp]uint64{opHold: 1, opRelease: 2}[op]
		answer := r.keeping.hold(t.Context(), "acme.host-0", leaseRequest{Op: op, Instance: "agent", Seq: seq, Presence: online}, "me")
		if answer.Error != "" {
			t.Fatal(answer.Error)
		}
		if err := admit("acme", 2); (err == nil) != (op == opRelease) {
			t.Errorf("a third host after %s: %v; want it admitted only after a release", op, err)
		}
	}
	if err := admit("other", 0); err != nil {
		t.Errorf("the first host of a different tenant: %v; want it admitted", err)
	}
	if err := admit("other", 1); !errors.As(err, &full) {
		t.Errorf("the second host of the different tenant: %v; want a FullError", err)
	}
	for host := range 5 {
		if err := admit("free", host); err != nil {
			t.Errorf("host %d of a tenant without a limit: %v; want it admitted", host, err)
		}
	}
}
