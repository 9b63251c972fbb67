package embedded

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// noPeers is the error code of NATS for a stream that has no place, because servers are
// offline.
const noPeers = jetstream.ErrorCode(server.JSClusterNoPeersErrF)

// TestStopDuringAssignmentLeavesNothing replaces one server of three, with an empty directory, and
// stops the new server while it creates the copies of the streams. TestMain fails if a goroutine of
// that server is left.
func TestStopDuringAssignmentLeavesNothing(t *testing.T) {
	t.Parallel()
	servers, replace := startThree(t)
	keys := servers[0].keys
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
		await(t, "the leader counts all servers as online, and creates a stream", func() bool {
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: fmt.Sprint("stream-", i), Replicas: len(servers)})
			var reason *jetstream.APIError
			if errors.As(err, &reason) && reason.ErrorCode == noPeers {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			return true
		})
	}
	servers[2].Close()
	replace(2)
	s := servers[2]
	await(t, "the new server creates two copies", func() bool {
		account := keys.Authority().RelaysAccount()
		return len((*s.nats.Raftz(&server.RaftzOptions{AccountFilter: account}))[account]) >= 2
	})
	s.store = "" // no handover, which would wait until all copies exist
	s.Close()
}
