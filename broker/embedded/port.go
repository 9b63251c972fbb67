package embedded

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"ahprelay/broker"

	"github.com/nats-io/nats-server/v2/server"
)

// The NATS server could listen itself, but then it would read from each connection
// for as long as that brings something. So the connections are taken here, and what
// they bring goes to the server in turns (turns.go), as does what comes through the
// relay's public port. Whose one is the server says when it has let it in; until then
// all are one party, in which each address is one.

// acceptRetry is the pause after a connection that could not be taken: there are no
// files left, or the like.
const acceptRetry = 100 * time.Millisecond

// A port takes connections over TCP.
type port struct {
	net.Listener
	server *Server
	tls    *tls.Config // nil: none
	log    *slog.Logger

	life    context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// listen opens the port; nobody is let in before open.
func listen(cfg Config) (*port, error) {
	if _, _, err := listenAddress("Listen", cfg.Listen); err != nil {
		return nil, err
	}
	p := &port{tls: cfg.TLS, log: cfg.Log}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.life, p.cancel = context.WithCancel(context.Background())
	var lc net.ListenConfig
	var err error
	if p.Listener, err = lc.Listen(p.life, "tcp", cfg.Listen); err != nil {
		p.cancel()
		return nil, err
	}
	return p, nil
}

// open lets connections in.
func (p *port) open(s *Server) {
	p.server = s
	p.running.Go(p.accept)
}

// close ends all connections, and returns when nothing of the port is left.
func (p *port) close() {
	p.cancel()
	_ = p.Close()
	p.running.Wait()
}

func (p *port) accept() {
	for {
		conn, err := p.Accept()
		if err == nil {
			p.running.Go(func() { p.serve(conn) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		p.log.Warn("NATS listener", "error", err)
		select {
		case <-time.After(acceptRetry):
		case <-p.life.Done():
			return
		}
	}
}

// serve joins a connection to the server until one side ends.
func (p *port) serve(conn net.Conn) {
	inner, err := p.server.InProcessConn()
	if err != nil {
		_ = conn.Close()
		return
	}
	end := func() {
		_ = conn.Close()
		_ = inner.Close()
	}
	defer end()
	defer context.AfterFunc(p.life, end)()
	remote, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	from := bufio.NewReader(inner)
	to, id, err := p.greet(steadyConn{conn}, from)
	if err != nil {
		p.log.Debug("connection to NATS came to nothing", "address", remote, "error", err)
		return
	}
	inTurn := p.server.turns.writer(p.life, &party{"all", nil, remote}, inner)
	var both sync.WaitGroup
	both.Go(func() {
		defer end()
		_ = broker.Pump(inTurn, to) // how it ended is the other side's to say
	})
	p.answer(to, from, inTurn, id)
	end()
	both.Wait()
}

// greet passes the server's greeting on, and makes TLS of what follows, if there is
// to be any. It returns the server's number of the connection.
func (p *port) greet(conn net.Conn, from *bufio.Reader) (to net.Conn, id uint64, err error) {
	line, err := from.ReadBytes('\n')
	if err != nil {
		return nil, 0, err
	}
	info := map[string]json.RawMessage{}
	if err := json.Unmarshal(bytes.TrimPrefix(line, []byte("INFO ")), &info); err != nil {
		return nil, 0, fmt.Errorf("greeting of the NATS server: %w", err)
	}
	if err := json.Unmarshal(info["client_id"], &id); err != nil {
		return nil, 0, fmt.Errorf("greeting of the NATS server: client_id: %w", err)
	}
	if p.tls == nil {
		_, err := conn.Write(line)
		return conn, id, err
	}
	info["tls_required"] = json.RawMessage("true")
	said, err := json.Marshal(info)
	if err != nil {
		return nil, 0, err
	}
	if _, err := fmt.Fprintf(conn, "INFO %s\r\n", said); err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(p.life, broker.DialTimeout)
	defer cancel()
	secure := tls.Server(conn, p.tls)
	return secure, id, secure.HandshakeContext(ctx)
}

// answerBuffer is how much of what the server says is passed on at a time, in bytes:
// little, because the server cuts one whose pieces are not taken in writeDeadline.
const answerBuffer = 8 << 10

// answer passes on what the server says, until one side ends. Its first word is an
// answer to a login.
func (p *port) answer(to net.Conn, from io.Reader, inTurn *turnWriter, id uint64) {
	known := false
	buf := make([]byte, answerBuffer)
	for {
		n, err := from.Read(buf)
		if n > 0 && !known {
			var whose *party
			if whose, known = p.server.partyOf(id); known {
				inTurn.whose.Store(whose)
			}
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// stalledWrite is how long a connection may take nothing.
const stalledWrite = 2 * writeDeadline

// A steadyConn writes for as long as the kernel takes something in stalledWrite. It
// lies below TLS, which a write that has timed out is the end of.
type steadyConn struct{ net.Conn }

// Write implements [net.Conn].
func (c steadyConn) Write(p []byte) (n int, err error) {
	for {
		if err := c.SetWriteDeadline(time.Now().Add(stalledWrite)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		if n += m; m == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// partyOf returns whose a connection is; ok is false while it has not been let in.
func (s *Server) partyOf(id uint64) (_ *party, ok bool) {
	c := s.nats.GetClient(id)
	if c == nil {
		return nil, false
	}
	account := c.Account()
	if account == nil || account.GetName() == server.DEFAULT_GLOBAL_ACCOUNT {
		return nil, false
	}
	var tenant any = account.GetName()
	if name, ok := s.tenants.Load(tenant); ok {
		tenant = name
	}
	return &party{"all", tenant, id}, true
}
