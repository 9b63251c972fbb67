package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

// reviveRoom is how many bytes must fit into the store's directory before JetStream is
// restarted.
const reviveRoom = 4 << 20

// StoreRoom returns nil if the store's directory can be written, else the reason.
func (s *Server) StoreRoom() error {
	if s.store == "" {
		return nil
	}
	if err := tryRoom(s.store); err != nil {
		return fmt.Errorf("NATS server: store %s: %w", s.store, err)
	}
	return nil
}

// ReviveStore restarts JetStream from its data on disk. After a failed write, for
// example on a full disk, JetStream stops or refuses all writes until a restart. In a
// cluster, ReviveStore does nothing while this server's JetStream still runs, because
// other servers have the data. An error gives the reason why a restart is impossible
// now.
//
// If JetStream has not stopped, ReviveStore restarts only the streams. A second start of
// JetStream is not safe: NATS answers each request twice afterwards, and replaces its
// queues of requests without a lock.
func (s *Server) ReviveStore() error {
	fail := func(err error) error { return fmt.Errorf("NATS server: store %s: %w", s.store, err) }
	runs := s.nats.JetStreamEnabled()
	if s.store == "" || runs && s.nats.JetStreamIsClustered() {
		return nil
	}
	if err := tryRoom(s.store); err != nil {
		return fail(err)
	}
	if !runs {
		if err := s.enableStore(); err != nil {
			return fail(errors.Join(err, s.nats.ShutdownJetStream())) // so that the next call starts it again
		}
		return nil
	}
	if err := s.restartStreams(); err != nil {
		return fail(err)
	}
	return nil
}

func (s *Server) enableStore() error {
	return s.nats.EnableJetStream(&server.JetStreamConfig{
		StoreDir: s.store, SyncInterval: syncInterval, MaxMemory: maxStoreMemory, MaxStore: maxStoreDisk, Strict: true, CompressOK: true,
	})
}

// tryRoom returns nil if reviveRoom bytes can be written into a directory, else the
// reason.
func tryRoom(dir string) error {
	f, err := os.CreateTemp(dir, "room-")
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Repeat([]byte{1}, reviveRoom))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
