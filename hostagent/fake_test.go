package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing/synctest"

	"ahprelay/ahp"
)

// A fakeHost is a host in memory, for tests on fake time.
type fakeHost struct {
	mu      sync.Mutex
	down    error         // why nobody can connect; nil: one can
	mute    bool          // it answers nothing
	gate    chan struct{} // it reads nothing until this is closed; nil: it reads
	answers func(env ahp.Envelope) string
	socks   []*fakeSocket
	dials   int
}

// answersAll is a host that has any request succeed.
func answersAll(env ahp.Envelope) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":null}`, env.ID)
}

// answersVersion is a host that refuses the monitor's initialize as hosts do.
func answersVersion(env ahp.Envelope) string {
	if string(env.Method) != "initialize" {
		return answersAll(env)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32005,"message":"no","data":{"supportedVersions":["0.9.0","0.8.0"]}}}`, env.ID)
}

// A fakeSocket is a connection to a fakeHost.
type fakeSocket struct {
	host   *fakeHost
	toUs   chan string
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex
	got    []string
	ending error // of Read, when the host has closed
}

var errClosed = errors.New("use of a closed connection")

func (h *fakeHost) dial(context.Context) (hostSocket, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dials++
	if h.down != nil {
		return nil, h.down
	}
	s := &fakeSocket{host: h, toUs: make(chan string, 1000), closed: make(chan struct{}), ending: errClosed}
	h.socks = append(h.socks, s)
	return s, nil
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

// end has the host close the connection.
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

// crash has the host end all connections and take no more.
func (h *fakeHost) crash() {
	h.set(func() { h.down = errors.New("connection refused") })
	for _, s := range h.all() {
		s.end(io.EOF)
	}
}

func (h *fakeHost) all() []*fakeSocket {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.socks)
}
