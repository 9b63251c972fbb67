package broker

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Whole returns nil if this server may stop without loss of the relays' data: each
// stream has as many copies as possible, and this server's copy or all copies are
// current. Servers is the number of connected servers, including this one. If cluster is
// not empty, streams of other clusters are ignored.
func Whole(ctx context.Context, js jetstream.JetStream, server, cluster string, servers int) error {
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("copies of %s: %w", name, err)
		}
		if err := wholeStream(stream.CachedInfo(), server, cluster, servers); err != nil {
			return err
		}
	}
	if err := names.Err(); err != nil {
		return fmt.Errorf("copies of the store: %w", err)
	}
	return nil
}

func wholeStream(info *jetstream.StreamInfo, server, cluster string, servers int) error {
	c := info.Cluster
	if c == nil || cluster != "" && c.Name != cluster {
		return nil
	}
	current, own := 1, c.Leader == server
	for _, p := range c.Replicas {
		if p.Current && !p.Offline {
			current++
			own = own || p.Name == server
		}
	}
	switch want := min(MaxCopies, servers); {
	case info.Config.Replicas < want:
		return fmt.Errorf("%s has %d copies, and %d relays are connected: copies are being added", info.Config.Name, info.Config.Replicas, servers)
	case !own && current < info.Config.Replicas:
		return fmt.Errorf("%s has %d of %d copies, and no current copy here", info.Config.Name, current, info.Config.Replicas)
	}
	return nil
}
