package registry

import (
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
)

// A host-agent that renews its credential at one relay is not cut off at another, which
// hears that the former one is used up before the store has told it of the next.
func TestRenewedIsNotRevoked(t *testing.T) {
	t.Parallel()
	server := newTestServer(t)
	a, b := startTest(t, server, Config{Instance: "a"}), startTest(t, server, Config{Instance: "b"})
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	const hosts = 50
	for i := range hosts {
		for _, token := range []string{"former", "next"} {
			e := auth.Enrolment{ID: fmt.Sprint(token, i), Tenant: "acme", Host: fmt.Sprintf("host-%d", i), IssuedAt: time.Now()}
			if err := a.Admit(t.Context(), e, key.Public(), time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); token == "former" && len(b.usersOf(e)) == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the other relay does not know of the host")
				}
			}
		}
		if err := b.Revocations().Add(auth.Revocation{Token: fmt.Sprint("former", i), At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	b.Close() // and see to nothing more
	if refused := b.tenants["acme"].refused; len(refused) > 0 {
		t.Errorf("users with good credentials are refused: %v", refused)
	}
}

func (r *Registry) usersOf(e auth.Enrolment) natsUsers {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.hosts[hostKey(e.Tenant, e.Host)]; k != nil {
		return k.Users
	}
	return nil
}
