package agents

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
)

// A slowTunnel is a host-agent's connection. It reads from brings, and delivers each
// written message to passed after a second. If it is closed within the second, the
// message is lost.
type slowTunnel struct {
	net.Conn // nil: provides the methods that splice does not call
	brings   *io.PipeReader
	passed   strings.Builder
	life     context.Context
	end      context.CancelFunc
}

func (s *slowTunnel) Read(p []byte) (int, error) { return s.brings.Read(p) }

// Write implements [net.Conn].
func (s *slowTunnel) Write(p []byte) (int, error) {
	time.Sleep(time.Second)
	if err := s.life.Err(); err != nil {
		return 0, err
	}
	return s.passed.Write(p)
}

// tunnelOf implements [Tunnel] with a slowTunnel as its stream.
type tunnelOf struct{ *slowTunnel }

func (t tunnelOf) Stream() net.Conn { return t.slowTunnel }
func (t tunnelOf) Reads() uint32    { return 0 }
func (t tunnelOf) Ping(string)      {}
func (t tunnelOf) Kill()            { t.Close(0, "") }

// Close implements [Tunnel].
func (t tunnelOf) Close(ahp.CloseCode, string) {
	t.end()
	_ = t.brings.Close()
}

// TestLastMessageIsPassedOn: the NATS server reads half of a login, refuses it and
// closes its connection. The relay delivers the refusal to the host-agent before it
// closes the host-agent's connection, and names the NATS side as the side that ended.
func TestLastMessageIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refusal = "-ERR 'Authorization Violation'\r\n"
		from, agent := io.Pipe()
		life, end := context.WithCancel(t.Context())
		sock := tunnelOf{&slowTunnel{brings: from, life: life, end: end}}
		server, nats := net.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- splice(&tunnel{Tunnel: sock}, server, false) }()
		go func() { _, _ = agent.Write([]byte("CONNECT {}\r\nPING\r\n")) }()
		login := make([]byte, len("CONNECT {}\r\n"))
		if _, err := io.ReadFull(nats, login); err != nil {
			t.Fatal(err)
		}
		if _, err := nats.Write([]byte(refusal)); err != nil {
			t.Fatal(err)
		}
		_ = nats.Close()
		if err := <-ended; !strings.HasPrefix(err.Error(), "NATS side: ") {
			t.Errorf("the tunnel ended with %v; want an error of the NATS side", err)
		}
		if got := sock.passed.String(); got != refusal {
			t.Errorf("the host-agent was told %q; want %q", got, refusal)
		}
	})
}

// TestEndOfAHostAgentIsNoLoss ends a host-agent's connection with its close frame, for which the stream returns io.EOF, and without.
// Only the latter is an error in the audit. If the relay closes the connection, the audit has the relay's reason, whatever the stream returns.
func TestEndOfAHostAgentIsNoLoss(t *testing.T) {
	for want, end := range map[string]error{
		"host-agent side: closed in good order":         io.EOF,
		"host-agent side: failed to read a header: EOF": fmt.Errorf("failed to read a header: %w", io.EOF),
		"relay side: relay shutting down":               io.ErrUnexpectedEOF,
	} {
		from, agent := io.Pipe()
		life, stop := context.WithCancel(t.Context())
		sock := tunnelOf{&slowTunnel{brings: from, life: life, end: stop}}
		server, nats := net.Pipe()
		_ = agent.CloseWithError(end)
		at := &tunnel{Tunnel: sock}
		if end == io.ErrUnexpectedEOF {
			at.Close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
		}
		if err := splice(at, server, false); err == nil || err.Error() != want {
			t.Errorf("the tunnel ended with %v; want %s", err, want)
		}
		_ = nats.Close()
	}
}
