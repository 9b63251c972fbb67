package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/test/must"
)

// An asker requests leases for hosts of a tenant, one after another.
type asker struct {
	*nats.Conn
	tenant  string
	answers chan *nats.Msg
}

// connect connects to NATS as a relay's user of a tenant.
func connect(keys *auth.Keys, url, tenant string, options ...nats.Option) (*nats.Conn, error) {
	user, err := keys.Authority().RelayUser(tenant)
	if err != nil {
		return nil, err
	}
	return nats.Connect(url, append(options, nats.UserJWT(func() (string, error) { return user.JWT, nil }, user.Sign))...)
}

func newAsker(r *Relay, tenant string) *asker {
	nc := must.Get(connect(r.config.Keys, "nats://"+r.Server.Addr().String(), tenant))
	defer must.Undo(nc.Close)
	a := &asker{nc, tenant, make(chan *nats.Msg, 1)}
	must.Get(nc.ChanSubscribe("ahp.v1."+tenant+".*.inbox.asker", a.answers))
	return a
}

// These are the wait for an answer and the pause before a repetition. A relay drops
// requests for a host that sends too many, and expects the host to repeat them.
const (
	answerWait = 10 * time.Second
	repeatWait = time.Second
)

// ask sends a lease request for a host, and waits for the answer.
func (a *asker) ask(ctx context.Context, host, body string) error {
	prefix := "ahp.v1." + a.tenant + "." + host + "."
	ctx, cancel := context.WithTimeoutCause(ctx, answerWait, fmt.Errorf("no answer about %s", host))
	defer cancel()
	select {
	case <-a.answers: // a late answer to an earlier request
	default:
	}
	for {
		if err := a.PublishRequest(prefix+"ctl.lease", prefix+"inbox.asker", []byte(body)); err != nil {
			return err
		}
		select {
		case <-a.answers:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(repeatWait):
		}
	}
}
