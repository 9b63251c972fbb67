package embedded

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/nats-server/v2/server"
)

// A Config describes a [Server].
type Config struct {
	Keys    *auth.Keys                      // required; the server accepts users signed with these keys
	Name    string                          // unique in a cluster; default: random
	Listen  string                          // host:port for NATS over TCP, port 0 picks a free one; default: only connections within the process
	TLS     *tls.Config                     // for the TCP listener; default: none
	Tenants map[string]map[string]time.Time // accounts to open at first, each with its revoked users
	Wait    time.Duration                   // how long logins to unknown accounts wait for the call of Resolve; default: 0
	Store   string                          // directory for JetStream; default: none
	Cluster Cluster                         // cluster of this server; default: none
	Log     *slog.Logger                    // default: none

	Gateways Gateways // connections to other regions; default: none

	unauthenticated int // bound of the connections before login; default: maxUnauthenticated
}

// A Server is a NATS server within this process. It requires authentication, and
// accepts users signed with its keys.
type Server struct {
	nats     *server.Server
	keys     *auth.Keys
	accounts *resolver // returns the accounts that the server asks for
	made     sync.Map  // accounts loaded before: *server.Account by name
	tenants  sync.Map  // tenants, by account
	port     *port     // the TCP listener; nil: none
	turns    *turns    // decides whose bytes the server reads next
	store    string    // JetStream's directory; "": none
	others   []string  // addresses of the other servers in the cluster
	size     int       // configured size of the cluster; 0: not configured
	accepts  accepts   // which of others have accepted a connection

	close sync.Once
}

// InProcessConn opens a connection which carries plain NATS protocol. The server sees
// no remote address, so callers must log the remote address.
func (s *Server) InProcessConn() (net.Conn, error) {
	c, err := s.nats.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("NATS server: connect in process: %w", err)
	}
	return c, nil
}

// Addr returns the address of the TCP listener, or nil.
func (s *Server) Addr() net.Addr {
	if s.port == nil {
		return nil
	}
	return s.port.Addr()
}

// Name returns the server's name, unique in its cluster.
func (s *Server) Name() string { return s.nats.Name() }

// listenAddress parses the address in a flag of relay serve.
func listenAddress(flag, address string) (host string, port int, err error) {
	host, digits, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%s %q: want host:port", flag, address)
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%s %q: want a port up to 65535", flag, address)
	}
	if n == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(n), nil
}

// relaysOwn returns functions which make the claims of the accounts without
// host-agents.
func relaysOwn(keys *auth.Keys) []func(auth.Servers) (string, error) {
	return []func(auth.Servers) (string, error){keys.Authority().SystemAccountJWT, keys.Authority().RelaysAccountJWT}
}
