package embedded

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/internal/clock"
	"ahprelay/internal/fair"
	"ahprelay/internal/unauthenticated"

	"github.com/nats-io/nats-server/v2/server"
)

// The NATS server could listen itself, but it would read from each connection without
// pause. The relay therefore accepts the connections, and passes their bytes to the
// server in turns (turns.go), like connections from the relay's public port. A
// connection's owner is known after its login. Before it, all connections share the
// turns of one party, divided by address, and at most maxUnauthenticated of them are
// open (package unauthenticated). The server itself has only a login timeout, which
// would not protect the process's file descriptors.

// acceptRetry is the pause after a failed accept, for example if there are no free
// file descriptors.
const acceptRetry = 100 * time.Millisecond

// maxUnauthenticated bounds the connections before login, from all addresses together.
const maxUnauthenticated = 4096

// A port accepts TCP connections for the NATS server.
type port struct {
	net.Listener
	server *Server
	tls    *tls.Config // nil: none
	log    *slog.Logger

	unauthenticated *unauthenticated.Table // connections that have not logged in

	mu    sync.Mutex        // guards the fields below
	conns map[[2]string]int // number of logged-in connections, by tenant and host

	life    context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// listen opens the TCP listener. Connections wait until open is called.
func listen(cfg Config) (*port, error) {
	if _, _, err := listenAddress("--nats-listen", cfg.Listen); err != nil {
		return nil, err
	}
	p := &port{tls: cfg.TLS, log: cfg.Log, unauthenticated: unauthenticated.New(unauthenticated.Bounds{Total: cmp.Or(cfg.unauthenticated, maxUnauthenticated)}), conns: map[[2]string]int{}}
	p.log = cmp.Or(p.log, slog.New(slog.DiscardHandler))
	p.life, p.cancel = context.WithCancel(context.Background())
	var lc net.ListenConfig
	var err error
	if p.Listener, err = lc.Listen(p.life, "tcp", cfg.Listen); err != nil {
		p.cancel()
		return nil, fmt.Errorf("--nats-listen: %w", err)
	}
	return p, nil
}

func (p *port) open(s *Server) {
	p.server = s
	p.running.Go(p.accept)
}

// close ends all connections and waits for the port's goroutines.
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
		p.log.Warn("NATS connection not accepted", "error", err)
		if !clock.Sleep(p.life, acceptRetry) {
			return
		}
	}
}

// addressOf returns the key of a remote address among unauthenticated connections.
func addressOf(remote string) string {
	at, err := netip.ParseAddr(remote)
	if err != nil {
		return remote
	}
	return fair.Site(at)
}

// serve copies between a connection and the server until either ends.
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
	place := p.unauthenticated.Enter(address, end)
	defer place.Leave()
	from := bufio.NewReader(inner)
	to, id, err := p.greet(steadyConn{conn}, from)
	if err != nil {
		p.log.Debug("connection to NATS ended before login", "address", remote, "error", err)
		return
	}
	inTurn := p.server.turns.writer(life, &party{"all", nil, address}, inner)
	login := &loginLine{from: to}
	var both sync.WaitGroup
	both.Go(func() {
		_ = broker.Pump(inTurn, login) // then the other direction ends too
		// Close only the server's side: its last message, such as the refusal of a
		// login, may still be on its way to the client.
		_ = inner.Close()
	})
	leave := func() {}
	p.answer(to, from, func() (known bool) {
		whose, known := p.server.partyOf(id, login)
		if known {
			inTurn.whose.Store(whose)
			place.Leave()
			leave = p.join(whose, end)
		}
		return known
	})
	leave()
	end()
	both.Wait()
}

// maxHostConns bounds the connections per host, like the relay's public port.
const maxHostConns = 32

// join counts a connection after login, until leave is called. If its host has too
// many connections, join calls end.
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
		p.log.Warn("connection to NATS refused", "reason", "too many connections of its host", "tenant", tenant, "host", host, "limit", maxHostConns)
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

// greet forwards the server's first line, and then starts TLS if configured. It
// returns the server's id of the connection.
func (p *port) greet(conn net.Conn, from *bufio.Reader) (to net.Conn, id uint64, err error) {
	line, err := from.ReadBytes('\n')
	if err != nil {
		return nil, 0, err
	}
	info := map[string]json.RawMessage{}
	if err := json.Unmarshal(bytes.TrimPrefix(line, []byte("INFO ")), &info); err != nil {
		return nil, 0, fmt.Errorf("NATS server greeting: %w", err)
	}
	if err := json.Unmarshal(info["client_id"], &id); err != nil {
		return nil, 0, fmt.Errorf("NATS server greeting: client_id: %w", err)
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

// answerBuffer is the size of a write to the client in bytes. It is small because the
// server ends a connection if one piece is not accepted within writeDeadline.
const answerBuffer = 8 << 10

// answer forwards the server's messages until either side ends. After each read it
// calls isKnown, until isKnown returns true, because each may be the answer to a
// login.
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

// stalledWrite is how long a write may make no progress.
const stalledWrite = 2 * writeDeadline

// A steadyConn fails a write only after stalledWrite without progress. It wraps the
// connection below TLS, because TLS cannot continue after a write timeout.
type steadyConn struct{ net.Conn }

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

// partyOf returns the owner of a connection: a host, or a separate party for other
// users. It reports false before the login.
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

// maxLogin bounds a login in bytes, as the server does.
const maxLogin = server.MAX_CONTROL_LINE_SIZE

// A loginLine reads from a connection, and stores its first line, which is the login:
// the server accepts no other message before it, and ends the connection if the login
// is bad.
type loginLine struct {
	from io.Reader

	mu    sync.Mutex // guards the fields below
	line  []byte
	whole bool
}

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

// jwt returns the login's JWT, or "", and frees the line.
func (l *loginLine) jwt() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var says struct {
		JWT string `json:"jwt"`
	}
	if at := bytes.IndexByte(l.line, '{'); at >= 0 {
		_ = json.Unmarshal(l.line[at:], &says) // valid, because the server has accepted it
	}
	l.line, l.whole = nil, true
	return says.JWT
}
