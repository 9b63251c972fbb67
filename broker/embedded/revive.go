package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

// reviveRoom is the number of bytes that must fit into the store's directory before a
// restart.
const reviveRoom = 4 << 20

// StoreRoom reports why nothing can be written into the store's directory.
func (s *Server) StoreRoom() error {
	if s.store == "" {
		return nil
	}
	if err := tryRoom(s.store); err != nil {
		return fmt.Errorf("NATS server: store %s: %w", s.store, err)
	}
	return nil
}

// ReviveStore restarts JetStream from its data on disk. After the first failed write,
// as on a full disk, JetStream writes nothing more, or stops, until the server
// restarts. If JetStream still runs on a server of a cluster, ReviveStore does
// nothing, because other servers have the data. The error reports why a restart is not
// possible now.
func (s *Server) ReviveStore() error {
	fail := func(err error) error { return fmt.Errorf("NATS server: store %s: %w", s.store, err) }
	if s.store == "" || s.nats.JetStreamEnabled() && s.nats.JetStreamIsClustered() {
		return nil
	}
	if err := tryRoom(s.store); err != nil {
		return fail(err)
	}
	if err := s.nats.ShutdownJetStream(); err != nil {
		return fail(err)
	}
	err := s.nats.EnableJetStream(&server.JetStreamConfig{
		StoreDir: s.store, SyncInterval: syncInterval, MaxMemory: maxStoreMemory, MaxStore: maxStoreDisk, Strict: true, CompressOK: true,
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// tryRoom reports whether a directory can be written to.
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
