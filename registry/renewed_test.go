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

// What is revoked in one region of a host that another decides of waits for what that one's
// store had by then, and not for this one's.
func TestCatchesUpWithHome(t *testing.T) {
	t.Parallel()
	r := startTest(t, newTestServer(t), Config{Instance: "a", Region: "near"})
	far := &view{name: "far"}
	var err error
	if far.store, err = r.storeOf(far.name); err != nil {
		t.Fatal(err)
	}
	far.store.found = false // it makes it
	if _, err := far.store.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	const key = "acme.laptop"
	users := natsUsers{{NKey: "U", Token: "former", Expires: time.Now().Add(time.Hour)}}
	rev, err := far.store.put(t.Context(), hostKeys+key, hostState{Key: key, Users: users})
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	k := &knownHost{hostState: hostState{Key: key, Users: users}, home: far}
	r.addLocked(k)
	r.tokensLocked(k)
	r.mu.Unlock()
	homes := r.homesOf([]auth.Revocation{{Token: "former", At: time.Now()}})
	if len(homes) != 1 || homes[0] != far {
		t.Fatalf("homes %v; want the region that decides of the host", homes)
	}
	known := make(chan bool, 1)
	go func() { known <- r.catchUp(t.Context(), homes[0]) }()
	select {
	case <-known:
		t.Fatal("it goes on before it knows what the store of the host has")
	case <-time.After(100 * time.Millisecond): // less than it waits at most
	}
	r.note(far, rev)
	select {
	case all := <-known:
		if !all {
			t.Error("it has given up, though the store of the host has told all")
		}
	case <-time.After(time.Minute):
		t.Error("it does not go on when it knows")
	}
}
