package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/test/must"
)

// connect connects to this relay's NATS server as a relay's user of a tenant.
func (r *Relay) connect(tenant string) *nats.Conn {
	return must.Get(connect(r.config.Keys, "nats://"+r.Server.Addr().String(), tenant))
}

// connect connects to NATS as a relay's user of a tenant.
func connect(keys *auth.Keys, url, tenant string, options ...nats.Option) (*nats.Conn, error) {
	user, err := keys.Authority().RelayUser(tenant)
	if err != nil {
		return nil, err
	}
	return nats.Connect(url, append(options, nats.UserJWT(func() (string, error) { return user.JWT, nil }, user.Sign))...)
}

// An asker sends the requests of a host to a relay, one after another.
type asker struct {
	conn    *nats.Conn
	prefix  string // of the host's subjects
	answers chan *nats.Msg
}

// askFor returns an asker that uses the connection of a relay's user of the tenant.
func askFor(conn *nats.Conn, tenant, host string) *asker {
	a := &asker{conn, "ahp.v1." + tenant + "." + host + ".", make(chan *nats.Msg, 1)}
	must.Get(conn.ChanSubscribe(a.prefix+"inbox.asker", a.answers))
	return a
}

// ask sends a request, and repeats it until an answer comes. A relay drops requests for a
// host that sends too many, and expects the host to repeat them.
func (a *asker) ask(ctx context.Context, operation string, body []byte, repeat time.Duration) (answer []byte, err error) {
	select {
	case <-a.answers: // a late answer to an earlier request
	default:
	}
	for {
		if err := a.conn.PublishRequest(a.prefix+"ctl."+operation, a.prefix+"inbox.asker", body); err != nil {
			return nil, err
		}
		select {
		case msg := <-a.answers:
			return msg.Data, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("no answer about %s: %w", a.prefix, context.Cause(ctx))
		case <-time.After(repeat):
		}
	}
}
