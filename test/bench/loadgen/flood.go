package loadgen

import (
	"bytes"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"golang.org/x/sync/errgroup"
)

// FloodArgs describes connections that publish as fast as they can.
type FloodArgs struct {
	URL     string // URL of NATS
	JWT     string // JWT of a NATS user
	Seed    []byte // seed of this user's key
	Subject string
	Reply   string // subject for replies; "": no reply is requested
	Conns   int
	Size    int // length of a message in bytes
	For     time.Duration
}

// connectNATS connects to NATS. On a slow machine, the server may send a PING before it
// has received the login. The client refuses this, so connectNATS tries again.
func connectNATS(url string, opts ...nats.Option) (conn *nats.Conn, err error) {
	opts = append(opts, nats.Timeout(dialTime))
	for range 5 {
		conn, err = nats.Connect(url, opts...)
		if err == nil || !strings.Contains(err.Error(), "got 'PING'") {
			break
		}
	}
	return conn, err
}

// Flood publishes on many connections. sent is the number of messages.
func (c *Clients) Flood(args FloodArgs, sent *uint64) error {
	key, err := nkeys.FromSeed(args.Seed)
	if err != nil {
		return err
	}
	login := nats.UserJWT(func() (string, error) { return args.JWT, nil }, key.Sign)
	var conns []*nats.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	for range args.Conns {
		conn, err := connectNATS(args.URL, login)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
	}
	message := &nats.Msg{Subject: args.Subject, Reply: args.Reply, Data: bytes.Repeat([]byte("x"), args.Size)}
	end := time.Now().Add(args.For)
	var all atomic.Uint64
	var running errgroup.Group
	for _, conn := range conns {
		running.Go(func() error {
			for time.Now().Before(end) {
				if err := conn.PublishMsg(message); err != nil {
					return err
				}
				all.Add(1)
			}
			return nil
		})
	}
	err = running.Wait()
	*sent = all.Load()
	return err
}
