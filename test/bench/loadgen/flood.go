package loadgen

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// FloodArgs describe a publisher that sends as fast as it can.
type FloodArgs struct {
	URL     string // of NATS
	JWT     string // of a user
	Seed    []byte // of its key
	Subject string
	Reply   string // where answers are to go; "": none is wanted
	Conns   int
	Size    int // bytes of each message
	For     time.Duration
}

// connectNATS connects to NATS. On a slow machine the server sends a PING before the
// login has arrived, which the client refuses.
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

// Flood publishes on many connections, and returns the number of messages.
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
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for _, conn := range conns {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := conn.PublishMsg(message); err != nil {
					failed.Store(&err)
					return
				}
				all.Add(1)
			}
		})
	}
	wg.Wait()
	*sent = all.Load()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
