package embedded

import (
	"context"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Handover times.
const (
	handOverTime = 2 * time.Second // maximum
	handOverLook = 20 * time.Millisecond
	stepDownWait = 500 * time.Millisecond // for a server to take over leadership
)

// handOver transfers this server's leaderships before it ends. Otherwise the others
// notice the missing leader late: after up to 9 s for JetStream as a whole, and as
// long again for each stream. Of two servers, the other cannot become leader at all
// without this server's vote.
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
			ask(name, func() { _ = s.nats.JetStreamStepdownStream(s.keys.Authority().RelaysAccount(), name) }) // repeated
		}
		if meta && len(streams) == 0 { // the meta leader decides about streams, so it goes last
			ask("", func() { _, _ = s.askSystem(ctx, server.JSApiLeaderStepDown, nil) })
		}
		select {
		case <-ctx.Done():
		case <-time.After(handOverLook):
		}
	}
}

// leads returns the streams that this server leads, and whether it leads JetStream as
// a whole. Settled reports that each has a leader: this server may win a pending election.
func (s *Server) leads() (streams []string, meta, settled bool) {
	info, err := s.nats.Jsz(&server.JSzOptions{Account: s.keys.Authority().RelaysAccount(), Streams: true})
	if err != nil || info.Meta == nil {
		return nil, false, false
	}
	settled = info.Meta.Leader != ""
	for _, account := range info.AccountDetails {
		for _, stream := range account.Streams {
			switch {
			case stream.Cluster == nil || len(stream.Cluster.Replicas) == 0: // no other server has it
			case stream.Cluster.Leader == s.Name():
				streams = append(streams, stream.Name)
			case stream.Cluster.Leader == "":
				settled = false
			}
		}
	}
	return streams, info.Meta.Leader == s.Name(), settled
}

// askSystem sends a request in the system account.
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
