package embedded

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/auth"
	"ahprelay/test/faultproxy"
)

// TestStopDuringAssignmentLeavesNothing replaces one server of three, with an empty directory, and
// stops the new server while it creates the copies of the streams. TestMain fails if a goroutine of
// that server is left.
func TestStopDuringAssignmentLeavesNothing(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for range 3 {
		address, err := faultproxy.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		routes = append(routes, address)
	}
	start := func(i int) *Server {
		t.Helper()
		s, err := Start(Config{Keys: keys, Name: fmt.Sprint("relay-", i), Store: t.TempDir(), Cluster: Cluster{Listen: routes[i], Routes: routes}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	await := func(what string, happens func() bool) {
		t.Helper()
		for until := time.Now().Add(waitTime); !happens(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: not within %v; want it sooner", what, waitTime)
			}
		}
	}
	servers := []*Server{start(0), start(1), start(2)}
	await("the servers agree about JetStream's log", func() bool { return settled(servers) })
	user, err := keys.Authority().RelayUser("")
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(servers[0]), nats.UserJWT(func() (string, error) { return user.JWT, nil }, user.Sign))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(waitTime))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: fmt.Sprint("stream-", i), Replicas: len(servers)}); err != nil {
			t.Fatal(err)
		}
	}
	servers[2].Close()
	s := start(2)
	await("the new server creates two copies", func() bool {
		account := keys.Authority().RelaysAccount()
		return len((*s.nats.Raftz(&server.RaftzOptions{AccountFilter: account}))[account]) >= 2
	})
	s.store = "" // no handover, which would wait until all copies exist
	s.Close()
}
