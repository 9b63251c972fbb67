package broker

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"ahprelay/broker/link"
	"ahprelay/internal/signal"
)

// tailRoom bounds the messages that wait for take.
const tailRoom = 4096

// Tail calls take with each message on the channel subjects of a host, until ctx ends or
// NATS reports an error. Token selects one channel; "" selects all. Lost is called with
// the number of messages that were dropped because take was slow.
func Tail(ctx context.Context, url string, creds []byte, tenant, host, token string, take func(data []byte), lost func(n int)) error {
	into, ended, dropped := make(chan *nats.Msg, tailRoom), make(chan error, 1), make(chan struct{}, 1)
	conn, err := nats.Connect(url, nats.UserCredentialBytes(creds), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if err == nats.ErrSlowConsumer {
				signal.Send(dropped)
				return
			}
			select {
			case ended <- err:
			default:
			}
		}))
	if err != nil {
		return fmt.Errorf("NATS at %s: %w; start relay serve with --nats-listen, or give its address with --server", url, err)
	}
	defer conn.Close()
	token = cmp.Or(token, ">")
	sub, err := conn.ChanSubscribe(link.ChannelSubject(tenant, host, token), into)
	if err != nil {
		return fmt.Errorf("NATS at %s: %w", url, err)
	}
	before := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return fmt.Errorf("NATS at %s: %w", url, err)
		case <-dropped:
			if n, err := sub.Dropped(); err == nil && n > before {
				lost(n - before)
				before = n
			}
		case msg := <-into:
			take(msg.Data)
		}
	}
}
