package gateway

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/coder/websocket"

	"ahprelay/auth"
	"ahprelay/broker/resume"
)

// ahp-connect keeps a client's connection in a stream that survives the loss of its
// network connection (package resume). Inside the stream is an ordinary WebSocket with
// its own handshake and token, so most code treats it like any other. There are three
// exceptions: liveness ignores a client whose network connection is lost, the budget
// counts the stream's buffers instead of the kernel's, and a revocation discards the
// stream.

// maxStreams is the largest number of streams for each person.
const maxStreams = 256

// carried serves client connections that arrive in streams.
type carried struct {
	relay  *resume.Relay
	pool   *resume.Pool
	server *http.Server
}

func (s *Server) startCarried() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ahp/{host}", s.serveAHP)
	c := &carried{
		relay: resume.NewRelay(resume.RelayConfig{
			Window: s.cfg.ClientBacklog, Time: s.cfg.ClientResume, MaxStreams: maxStreams,
		}),
		pool: resume.NewPool(s.cfg.PersonBacklog, s.cfg.TotalBacklog),
		server: &http.Server{
			ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("X-Forwarded-For") // RemoteAddr is the client's address already
				closeUpgrades(mux).ServeHTTP(w, r)
			}),
		},
	}
	s.carried = c
	s.spawn(func() { c.relay.Run(s.life) })
	s.spawn(func() { _ = c.server.Serve(c.relay) }) // ends with close
}

func (c *carried) close() {
	_ = c.relay.Close() // cannot fail
	_ = c.server.Close()
}

func (s *Server) serveCarrier(w http.ResponseWriter, r *http.Request) {
	token, err := auth.RequestToken(r)
	var who auth.Client
	if err == nil {
		who, err = s.caller.Authenticate(r, token)
	}
	if err != nil {
		s.caller.Unauthorized(w, r, err)
		return
	}
	s.caller.Proved(r)
	if r.Header.Get("Origin") != "" {
		http.Error(w, "streams that resume are for ahp-connect, not for web pages", http.StatusForbidden)
		return
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{resume.Subprotocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // the library has answered
	}
	carrier := resume.NewWebSocket(s.life, ws)
	address := s.caller.Address(r)
	if !s.spawn(func() {
		err := s.carried.relay.Serve(carrier, s.carried.pool, who.Tenant+" "+who.Subject, &net.TCPAddr{}, clientAddr(address))
		if errors.Is(err, resume.ErrBroken) {
			s.cfg.Log.Warn("stream ended", "reason", "the client violated the stream's protocol", "subject", who.Subject, "address", address)
		}
	}) {
		carrier.Close()
	}
}

// clientAddr converts a client's IP address for the connection inside a stream.
func clientAddr(address string) net.Addr {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return &net.TCPAddr{}
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
}
