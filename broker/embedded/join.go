package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"

	"ahprelay/broker"
)

// noData is the TLS application protocol which a server accepts in its cluster if it has no data
// in JetStream's log. A server with data accepts none.
const noData = "ahp-relay-no-data"

// metaLog is NATS's name of JetStream's log, which lists all streams.
const metaLog = "_meta_"

// answerJoining lets servers with empty stores ask whether this server has data.
func (s *Server) answerJoining(config *tls.Config) {
	accepts := config.Clone()
	accepts.NextProtos = []string{noData}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Contains(hello.SupportedProtos, noData) && !s.hasData() {
			return accepts, nil
		}
		return nil, nil // config
	}
}

// hasData reports whether JetStream's log contains an entry.
func (s *Server) hasData() bool {
	status := s.nats.Raftz(&server.RaftzOptions{GroupFilter: metaLog})
	if status == nil {
		return false
	}
	for _, groups := range *status {
		if groups[metaLog].PIndex > 0 {
			return true
		}
	}
	return false
}

// joinOthers keeps a server with an empty store from leading servers that have data. Two servers
// that replace a lost majority would otherwise elect each other before they are connected to the
// third, and would discard its data. If one server has data, this server leads only if all vote
// for it, and a server with data does not.
//
// NATS takes the number of votes from the length of the list of routes when JetStream starts.
// JetStream must start before the server has connections: without JetStream, the server answers
// requests of other servers with "stream not found", and the other servers no longer count its
// vote.
func (s *Server) joinOthers(opts *server.Options) error {
	_, err := os.Stat(filepath.Join(s.store, server.JetStreamStoreDir))
	if !opts.JetStream || len(s.others) == 0 || !errors.Is(err, os.ErrNotExist) || !s.othersHaveData(opts.Cluster.TLSConfig) {
		return nil
	}
	return lengthen(opts, max(s.size, len(s.others)+1))
}

// othersHaveData reports whether a running server of the cluster may have data.
func (s *Server) othersHaveData(config *tls.Config) bool {
	ctx, cancel := context.WithTimeout(context.Background(), broker.DialTimeout)
	defer cancel()
	config = config.Clone()
	config.NextProtos = []string{noData}
	var found atomic.Bool
	var wg sync.WaitGroup
	for _, address := range s.others {
		wg.Go(func() {
			if mayHaveData(ctx, address, config) {
				found.Store(true)
			}
		})
	}
	wg.Wait()
	return found.Load()
}

// mayHaveData asks the server at an address whether it has data. A server which accepts no
// connection until ctx ends does not run, so it has none; the kernel repeats lost packets
// meanwhile. A server which accepts one and does not answer may have data.
func mayHaveData(ctx context.Context, address string, config *tls.Config) bool {
	var d net.Dialer
	plain, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = plain.Close() }()
	c := tls.Client(plain, config)
	return c.HandshakeContext(ctx) != nil || c.ConnectionState().NegotiatedProtocol != noData
}
