package scale

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
)

// An asker requests leases for hosts of a tenant, one after another.
type asker struct {
	*nats.Conn
	tenant  string
	answers chan *nats.Msg
}

func newAsker(f *Fleet, tenant string) (*asker, error) {
	user, err := f.Keys.Authority().RelayUser(tenant)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(f.URLs[0], nats.UserJWT(func() (string, error) { return user.JWT, nil }, user.Sign))
	if err != nil {
		return nil, err
	}
	a := &asker{nc, tenant, make(chan *nats.Msg, 1)}
	if _, err = nc.ChanSubscribe("ahp.v1."+tenant+".*.inbox.asker", a.answers); err != nil {
		nc.Close()
		return nil, err
	}
	return a, nil
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

func keysOf[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }
