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

	"ahprelay/auth"
	"ahprelay/broker"

	"github.com/nats-io/nats-server/v2/server"
)

// The NATS server could listen itself, but then it would read from each connection
// for as long as that brings something. So the connections are taken here, and what
// they bring goes to the server in turns (turns.go), as does what comes through the
// relay's public port. Whose one is the server says when it has let it in; until then
// all are one party, in which each address is one, and there are maxStrangers of them
// (strangers.go): the server gives each its time to log in, and has no bound of its own
// that the files of this process would last for.

// acceptRetry is the pause after a connection that could not be taken: there are no
// files left, or the like.
const acceptRetry = 100 * time.Millisecond

// A port takes connections over TCP.
type port struct {
	net.Listener
	server *Server
	tls    *tls.Config // nil: none
	log    *slog.Logger

	strangers *strangers

	mu    sync.Mutex        // guards the fields below
	conns map[[2]string]int // of each tenant's host, that have logged in

	life    context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// listen opens the port; nobody is let in before open.
func listen(cfg Config) (*port, error) {
	if _, _, err := listenAddress("Listen", cfg.Listen); err != nil {
		return nil, err
	}
	p := &port{tls: cfg.TLS, log: cfg.Log, strangers: newStrangers(maxStrangers), conns: map[[2]string]int{}}
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
	life, cancel := context.WithCancel(p.life)
	end := func() {
		cancel()
		_ = conn.Close()
		_ = inner.Close()
	}
	defer end()
	defer context.AfterFunc(p.life, end)()
	remote, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	address := addressOf(remote)
	met := p.strangers.enter(address, end)
	defer met()
	from := bufio.NewReader(inner)
	to, id, err := p.greet(steadyConn{conn}, from)
	if err != nil {
		p.log.Debug("connection to NATS came to nothing", "address", remote, "error", err)
		return
	}
	inTurn := p.server.turns.writer(life, &party{"all", nil, address}, inner)
	login := &loginLine{from: to}
	var both sync.WaitGroup
	both.Go(func() {
		_ = broker.Pump(inTurn, login) // how it ended is the other side's to say
		// If the server has ended it, its last word, such as why a login is refused, is still on
		// its way out: that is done first.
		_ = inner.Close()
	})
	leave := func() {}
	p.answer(to, from, func() (known bool) {
		whose, known := p.server.partyOf(id, login)
		if known {
			inTurn.whose.Store(whose)
			met()
			leave = p.join(whose, end)
		}
		return known
	})
	leave()
	end()
	both.Wait()
}

// maxHostConns is how many connections the agents of one host may have: as many as
// through the relay's public port.
const maxHostConns = 32

// join counts a connection that has logged in, or ends it, because its host has too many,
// until leave is called.
func (p *port) join(whose *party, end func()) (leave func()) {
	tenant, _ := whose[1].(string)
	host, ok := whose[2].(string)
	if !ok {
		return func() {}
	}
	key := [2]string{tenant, host}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[key]++
	if p.conns[key] > maxHostConns {
		p.log.Warn("connection to NATS refused: its host has too many", "tenant", tenant, "host", host, "most", maxHostConns)
		end()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conns[key]--; p.conns[key] == 0 {
			delete(p.conns, key)
		}
	}
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
// answer to a login: each is looked at until known says that it was that.
func (p *port) answer(to net.Conn, from io.Reader, isKnown func() bool) {
	known := false
	buf := make([]byte, answerBuffer)
	for {
		n, err := from.Read(buf)
		known = known || n > 0 && isKnown()
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

// partyOf returns whose a connection is: a host, or one of another kind by itself. ok is
// false while it has not been let in.
func (s *Server) partyOf(id uint64, login *loginLine) (_ *party, ok bool) {
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
	if of, host, ok := auth.UserHost(login.jwt()); ok && any(of) == tenant {
		return partyOf(of, host), true
	}
	return &party{"all", tenant, id}, true
}

// maxLogin is how long a login may be, in bytes: the server's own bound.
const maxLogin = server.MAX_CONTROL_LINE_SIZE

// A loginLine reads what a connection brings, and keeps the first line of it: the server
// lets nobody in who says anything before that, and ends the connection if it is no good
// login.
type loginLine struct {
	from io.Reader

	mu    sync.Mutex // guards the fields below
	line  []byte
	whole bool
}

// Read implements [io.Reader].
func (l *loginLine) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.whole {
		line, _, ended := bytes.Cut(p[:n], []byte("\n"))
		l.line = append(l.line, line[:min(len(line), maxLogin-len(l.line))]...)
		l.whole = ended || len(l.line) == maxLogin
	}
	return n, err
}

// jwt returns the user that the login names, "" if none. The line is kept no longer.
func (l *loginLine) jwt() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var says struct {
		JWT string `json:"jwt"`
	}
	if at := bytes.IndexByte(l.line, '{'); at >= 0 {
		_ = json.Unmarshal(l.line[at:], &says) // the server has read it
	}
	l.line, l.whole = nil, true
	return says.JWT
}
