package gateway

import (
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"ahprelay/broker"
	agentsapi "ahprelay/gateway/api/agents"
	"ahprelay/gateway/wire"
)

// A tunnel is a WebSocket through which a host-agent connects to NATS.
type tunnel struct{ *wire.Socket }

func (s *Server) acceptTunnel(w http.ResponseWriter, r *http.Request) (agentsapi.Tunnel, error) {
	sock, err := wire.Accept(s.life, w, r, nil, s.cfg.Stall, websocket.CompressionDisabled)
	if err != nil {
		return nil, err
	}
	sock.Pong = sock.PongNow
	return tunnel{sock}, nil
}

func (t tunnel) Stream() net.Conn { return binaryFrames{t.Socket.Stream(), t.Socket} }

// binaryFrames is a tunnel's stream. It sends each Write as a frame in a single system
// call. The WebSocket library would need two calls, because its buffer is small, and the
// first would already wake the host-agent.
type binaryFrames struct {
	net.Conn
	sock *wire.Socket
}

func (f binaryFrames) Write(piece []byte) (int, error) {
	if err := f.sock.Write(wire.EncodePiece(piece, true, true, true)); err != nil {
		return 0, err
	}
	return len(piece), nil
}

func (t tunnel) Reads() uint32 { return t.Conn.Reads.Load() }

func (t tunnel) Ping(payload string) {
	_ = t.Write(wire.AppendFrame(nil, wire.FinBit|wire.OpPing, []byte(payload))) // a failure also fails the next read
}

// natsPatience is how long the relay waits for external NATS servers before it logs that
// they do not answer.
const natsPatience = 1500 * time.Millisecond

// reportAbsence logs once that external NATS servers cannot be reached, unless stop is
// called within natsPatience. It sets the Retrying handler in events.
func (r *Relay) reportAbsence(events *broker.Events, url, trust string) (stop func()) {
	var last atomic.Pointer[error]
	events.Retrying = func(_ int, err error, _ time.Duration) { last.Store(&err) }
	late := time.AfterFunc(natsPatience, func() {
		err := errors.New("no answer yet")
		if p := last.Load(); p != nil {
			err = *p
		}
		r.log.Warn("NATS servers unreachable", "servers", url, "trust_file", trust, "error", err,
			"hint", "the servers of --nats-url must run, and include the trust file in their configuration")
	})
	return func() { late.Stop() }
}
