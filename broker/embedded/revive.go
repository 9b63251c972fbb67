package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

// reviveRoom is how many bytes must fit into the directory of the store before it is
// tried again.
const reviveRoom = 4 << 20

// ReviveStore has JetStream begin anew with what it has on disk. It takes the first
// failure to write, as on a full disk, for its end: it writes nothing more, or stops, until
// the server is started again. A server of a cluster whose JetStream still runs is left
// alone: others have what it could not write. The error says why it cannot be now.
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

// tryRoom reports what keeps a directory from being written to.
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
