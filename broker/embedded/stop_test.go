package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"ahprelay/auth"

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
	nc := connect(t, servers[0])
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
		account := s.keys.Authority().RelaysAccount()
		return len((*s.nats.Raftz(&server.RaftzOptions{AccountFilter: account}))[account]) >= 2
	})
	s.store = "" // no handover, which would wait until all copies exist
	s.Close()
}

// TestStopDuringCreationLeavesNothing stops servers that are creating streams. TestMain fails if a
// goroutine of a stream is left.
func TestStopDuringCreationLeavesNothing(t *testing.T) {
	t.Parallel()
	for range 5 {
		keys, err := auth.LoadKeys(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s, err := Start(Config{Keys: keys, Store: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		nc := connect(t, s)
		for i := range 10 {
			name := fmt.Sprint("stream-", i)
			config, err := json.Marshal(jetstream.StreamConfig{Name: name, Subjects: []string{name}})
			if err == nil {
				err = nc.PublishRequest("$JS.API.STREAM.CREATE."+name, nc.NewInbox(), config)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		nc.Close()
		s.Close()
	}
}

// connect returns a connection with a relay's authority.
func connect(t *testing.T, s *Server) *nats.Conn {
	t.Helper()
	user, err := s.keys.Authority().RelayUser("")
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserJWT(func() (string, error) { return user.JWT, nil }, user.Sign))
	if err != nil {
		t.Fatal(err)
	}
	return nc
}
