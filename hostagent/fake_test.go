package hostagent

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing/synctest"

	"ahprelay/ahp"
)

// A fakeHost is a host in memory, for tests on fake time. Tests change its fields with set.
type fakeHost struct {
	mu      sync.Mutex
	down    error         // dial fails with this error; nil accepts
	mute    bool          // the host answers no request
	hangs   chan struct{} // dial waits until this is closed; nil does not wait
	hanging bool          // underEyes sets hangs before the monitor starts
	pongs   bool          // connections are WebSockets whose pings the host answers, unless mute
	gate    chan struct{} // the host reads nothing until this is closed; nil reads at once
	early   []string      // the host sends these first on each connection
	answers func(env ahp.Envelope) string
	socks   []*fakeSocket
	dials   int
}

// answersAll answers each request with the result null.
func answersAll(env ahp.Envelope) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":null}`, env.ID)
}

// answersVersion answers initialize with an error that names the host's versions, as real hosts
// answer the host-agent's monitor. It answers other requests with null.
func answersVersion(env ahp.Envelope) string {
	if string(env.Method) != "initialize" {
		return answersAll(env)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32005,"message":"no","data":{"supportedVersions":["0.9.0","0.8.0"]}}}`, env.ID)
}

// A fakeSocket is a connection to a fakeHost. Tests send the host's messages through toUs, and got
// keeps the messages that the host received.
type fakeSocket struct {
	host   *fakeHost
	toUs   chan string
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex
	got    []string
	ending error // the error that Read returns after the connection has ended
}

var errClosed = fmt.Errorf("fake socket: %w", net.ErrClosed)

func (h *fakeHost) dial(ctx context.Context) (hostSocket, error) {
	return h.dialNoting(ctx, func() {})
}

func (h *fakeHost) dialNoting(ctx context.Context, accepted func()) (hostSocket, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dials++
	if hangs := h.hangs; hangs != nil && h.down == nil {
		h.mu.Unlock()
		accepted()
		select {
		case <-hangs:
		case <-ctx.Done():
		}
		h.mu.Lock()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("upstream ws://host %w", errHangs)
		}
		if h.down != nil {
			return nil, h.down
		}
	}
	if h.down != nil {
		return nil, h.down
	}
	s := &fakeSocket{host: h, toUs: make(chan string, 1000), closed: make(chan struct{}), ending: errClosed}
	for _, message := range h.early {
		s.toUs <- message
	}
	h.socks = append(h.socks, s)
	if h.pongs {
		return &pongingSocket{fakeSocket: s}, nil
	}
	return s, nil
}

// A pongingSocket is a WebSocket to a fakeHost, which answers pings unless it is mute.
type pongingSocket struct {
	*fakeSocket
	life func()
}

// OnControl implements pinger.
func (s *pongingSocket) OnControl(life func()) { s.life = life }

// Ping implements pinger.
func (s *pongingSocket) Ping() error {
	s.host.mu.Lock()
	mute := s.host.mute
	s.host.mu.Unlock()
	if !mute {
		s.life()
	}
	return nil
}

func (h *fakeHost) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// Read implements hostSocket.
func (s *fakeSocket) Read() ([]byte, bool, error) {
	select {
	case m := <-s.toUs:
		return []byte(m), false, nil
	default:
	}
	select {
	case m := <-s.toUs:
		return []byte(m), false, nil
	case <-s.closed:
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, false, s.ending
	}
}

// Whole implements hostSocket.
func (s *fakeSocket) Whole() bool { return len(s.toUs) > 0 }

// Write implements hostSocket.
func (s *fakeSocket) Write(message []byte, _ bool) error {
	s.host.mu.Lock()
	gate, mute, answers := s.host.gate, s.host.mute, s.host.answers
	s.host.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-s.closed:
		}
	}
	select {
	case <-s.closed:
		return errClosed
	default:
	}
	s.mu.Lock()
	s.got = append(s.got, string(message))
	s.mu.Unlock()
	if env, err := ahp.Peek(message); err == nil && env.Kind == ahp.Request && answers != nil && !mute {
		if answer := answers(env); answer != "" {
			s.toUs <- answer
		}
	}
	return nil
}

// Close implements hostSocket.
func (s *fakeSocket) Close(string) { s.once.Do(func() { close(s.closed) }) }

// end closes the connection from the host's side. Read then returns err.
func (s *fakeSocket) end(err error) {
	s.mu.Lock()
	s.ending = err
	s.mu.Unlock()
	s.Close("")
}

func (s *fakeSocket) isClosed() bool {
	synctest.Wait()
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

func (s *fakeSocket) messages() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// lose makes the host's machine vanish: no connection can be opened, and the monitor's connection
// times out.
func (h *fakeHost) lose() {
	h.set(func() { h.down = &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded} })
	h.all()[0].end(fmt.Errorf("read: %w", syscall.ETIMEDOUT)) // the monitor's connection
}

// crash ends all connections, and makes the host refuse new connections.
func (h *fakeHost) crash() {
	h.set(func() { h.down = errRefused })
	for _, s := range h.all() {
		s.end(io.EOF)
	}
}

// errRefused is the error of dialling an address where no program listens.
var errRefused = fmt.Errorf("upstream ws://10.1.2.3:7: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

func (h *fakeHost) all() []*fakeSocket {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.socks)
}
