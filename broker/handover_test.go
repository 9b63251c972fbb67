package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker/embedded"
	"ahprelay/test/natssite"
)

// TestLeadIsHandedOver stops the server that leads a stream on two servers. The other must lead the
// stream although it is alone, which needs the handover: alone it could not be elected.
func TestLeadIsHandedOver(t *testing.T) {
	t.Parallel()
	keys, listens := natssite.NewKeys(t), make([]string, 2)
	for i := range listens {
		listens[i] = natssite.FreePort(t)
	}
	streams, sites := map[string]jetstream.JetStream{}, map[string]*natssite.Site{}
	for i, name := range []string{"a", "b"} {
		server, err := embedded.Start(embedded.Config{Keys: keys, Name: name, Store: t.TempDir(), Cluster: natssite.Cluster(listens[i], listens...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		sites[name] = &natssite.Site{Keys: keys, Server: server}
		if streams[name], err = sites[name].Relays(t).JetStream(); err != nil {
			t.Fatal(err)
		}
	}
	leader := func(at string) (name string, copies int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // without a leader, nobody answers
		defer cancel()
		stream, err := streams[at].Stream(ctx, "ahp-test")
		if err != nil {
			return "", 0
		}
		if info := stream.CachedInfo(); info.Cluster != nil {
			for _, r := range info.Cluster.Replicas {
				if r.Current {
					copies++
				}
			}
			return info.Cluster.Leader, copies + 1
		}
		return "", 0
	}
	natssite.Eventually(t, "there is a stream", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := streams["a"].CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "ahp-test", Subjects: []string{"ahp.relays.v1.test"}, Replicas: 2})
		return err == nil
	})
	var first string
	natssite.Eventually(t, "both have the stream", func() bool {
		name, copies := leader("a")
		first = name
		return copies == 2
	})
	other := map[string]string{"a": "b", "b": "a"}[first]
	sites[first].Server.Close()
	natssite.Eventually(t, "the other server leads the stream, while it is alone", func() bool {
		name, _ := leader(other)
		return name == other
	})
}
