package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"ahprelay/auth"
	"ahprelay/broker"

	"github.com/nats-io/nats-server/v2/server"
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
	js, err := jetstream.New(dial(t, servers[0]).Conn(), jetstream.WithDefaultTimeout(waitTime))
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
		s, js := startAlone(t)
		nc := js.Conn()
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

// startAlone starts a server that is in no cluster, and returns it with its store.
func startAlone(t *testing.T) (*Server, jetstream.JetStream) {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(Config{Keys: keys, Store: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, dial(t, s)
}

// dial connects to a server's store as a relay does.
func dial(t *testing.T, s *Server) jetstream.JetStream {
	t.Helper()
	conn, err := broker.DialRelay(t.Context(), broker.RelayDialConfig{Server: s, Keys: s.keys, Instance: "r"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	return js
}
