package embedded

import (
	"context"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"ahprelay/internal/clock"
)

// Times of a handover.
const (
	handOverTime = 2 * time.Second // bound for the whole handover
	handOverLook = 20 * time.Millisecond
	stepDownWait = 500 * time.Millisecond // how long to wait until another server leads
)

// handOver transfers this server's leaderships to other servers before it ends. Otherwise
// they would notice the loss late: after up to 9 s for JetStream as a whole, and again up
// to 9 s for each stream. In a cluster of two, the other server could not become leader at
// all without this server's vote.
func (s *Server) handOver() {
	if s.store == "" || !s.nats.JetStreamIsClustered() || !s.Linked() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverTime)
	defer cancel()
	asked := map[string]time.Time{}
	for ctx.Err() == nil {
		streams, meta, settled := s.leads()
		if len(streams) == 0 && !meta && settled {
			return
		}
		ask := func(what string, stepDown func()) {
			if time.Since(asked[what]) > stepDownWait {
				asked[what] = time.Now()
				stepDown()
			}
		}
		for _, name := range streams {
			ask(name, func() { _ = s.nats.JetStreamStepdownStream(s.keys.Authority().RelaysAccount(), name) }) // repeated in the next round
		}
		if meta && len(streams) == 0 { // last, because the meta leader controls the streams
			ask("", func() { _, _ = s.askSystem(ctx, server.JSApiLeaderStepDown, nil) })
		}
		clock.Sleep(ctx, handOverLook)
	}
}

// leads returns the streams that this server leads, and whether it is JetStream's meta leader.
// Settled is false if JetStream or a stream has no leader: this server may still become the leader.
func (s *Server) leads() (streams []string, meta, settled bool) {
	info, err := s.nats.Jsz(&server.JSzOptions{Account: s.keys.Authority().RelaysAccount(), Streams: true})
	if err != nil || info.Meta == nil {
		return nil, false, false
	}
	settled = info.Meta.Leader != ""
	for _, account := range info.AccountDetails {
		for _, stream := range account.Streams {
			switch {
			case stream.Cluster == nil || len(stream.Cluster.Replicas) == 0: // there is no copy on another server
			case stream.Cluster.Leader == s.Name():
				streams = append(streams, stream.Name)
			case stream.Cluster.Leader == "":
				settled = false
			}
		}
	}
	return streams, info.Meta.Leader == s.Name(), settled
}

func (s *Server) askSystem(ctx context.Context, subject string, body []byte) ([]byte, error) {
	user, err := s.keys.Authority().SystemUser()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserJWT(func() (string, error) { return user.JWT, nil }, user.Sign))
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	reply, err := nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return nil, err
	}
	return reply.Data, nil
}
