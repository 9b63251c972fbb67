package embedded

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"ahprelay/auth"
)

// startPort starts a server with a TCP listener and the tenant acme.
func startPort(t *testing.T) *Server {
	t.Helper()
	return startPortWith(t, 0)
}

// startPortWith is startPort with a bound of the connections before login; 0: the default.
func startPortWith(t *testing.T, unauthenticated int) *Server {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(Config{Keys: keys, Listen: "127.0.0.1:0", Tenants: map[string]map[string]time.Time{"acme": nil}, unauthenticated: unauthenticated})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// rawAt connects to the server's port and reads the greeting. It returns the text with which a
// host-agent of the tenant would log in on this connection.
func rawAt(t *testing.T, s *Server, tenant, host string) (conn net.Conn, from *bufio.Reader, login string) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(waitTime))
	from = bufio.NewReader(conn)
	line, err := from.ReadBytes('\n')
	var info struct{ Nonce string }
	if err == nil {
		err = json.Unmarshal(bytes.TrimPrefix(line, []byte("INFO ")), &info)
	}
	if err != nil {
		t.Fatal(err)
	}
	key, _ := nkeys.CreateUser()
	public, _ := key.PublicKey()
	user, _, err := s.keys.Authority().AgentUser(tenant, host, public, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	signature, _ := key.Sign([]byte(info.Nonce))
	said, _ := json.Marshal(map[string]any{"jwt": user, "sig": base64.RawURLEncoding.EncodeToString(signature), "protocol": 1, "echo": true})
	return conn, from, "CONNECT " + string(said) + "\r\nPING\r\n"
}

// awaitLine reads lines until one begins with the given text.
func awaitLine(t *testing.T, from *bufio.Reader, begins string) {
	t.Helper()
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			t.Fatalf("waiting for %s: read %q, %v; want that line", begins, line, err)
		}
		if strings.HasPrefix(line, begins) {
			return
		}
	}
}

// TestUnauthenticatedConnectionsAreBounded opens connections that never log in, up to the bound.
// Host-agents must still be able to log in, and the server must close the oldest silent connection
// for them.
func TestUnauthenticatedConnectionsAreBounded(t *testing.T) {
	const most = 8
	s := startPortWith(t, most)
	var silent []*bufio.Reader
	for range most {
		_, from, _ := rawAt(t, s, "acme", "laptop")
		silent = append(silent, from)
	}
	for i := range 3 { // a connection no longer counts after its login
		agent, err := agentAt(s, "acme", fmt.Sprint("host-", i))
		if err != nil {
			t.Fatal(err)
		}
		defer agent.Close()
	}
	if n, _ := s.port.unauthenticated.Len(); n >= most {
		t.Errorf("the server counts %d unauthenticated connections; want fewer than %d after one eviction", n, most)
	}
	// Without an error, the end was the eviction: the server's timeout for logins would send one.
	if rest, err := io.ReadAll(silent[0]); err != nil || bytes.Contains(rest, []byte("-ERR")) {
		t.Errorf("the oldest silent connection receives %q, %v; want its end without an error, evicted for a newer connection", rest, err)
	}
}

// TestSurplusConnectionsOfAHostAreClosed opens a connection more for a host than a host may have.
// The server must close only that connection. Other hosts may connect, and the host itself again
// when a connection has ended.
func TestSurplusConnectionsOfAHostAreClosed(t *testing.T) {
	s := startPort(t)
	login := func(host string) *nats.Conn {
		t.Helper()
		conn, err := agentAt(s, "acme", host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(waitTime); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	joined := func(host string) int {
		s.port.mu.Lock()
		defer s.port.mu.Unlock()
		return s.port.conns[[2]string{"acme", host}]
	}
	var conns []*nats.Conn
	for range maxHostConns {
		conns = append(conns, login("busy"))
	}
	surplus, err := agentAt(s, "acme", "busy") // the login may be answered first
	if err == nil {
		defer surplus.Close()
		until("the connection that is too many ends", surplus.IsClosed)
	}
	quiet := login("quiet")
	if err := quiet.FlushTimeout(waitTime); err != nil || joined("quiet") != 1 {
		t.Errorf("a different host of the same tenant has %d connections, %v; want 1", joined("quiet"), err)
	}
	conns[0].Close()
	until("its place is free", func() bool { return joined("busy") < maxHostConns })
	if err := login("busy").FlushTimeout(waitTime); err != nil {
		t.Errorf("a new connection after one has ended: %v; want no error", err)
	}
	for _, conn := range conns[1:] {
		if !conn.IsConnected() {
			t.Error("a connection below the host's limit has ended; want it open")
		}
	}
}

// TestLoginByteByByteSucceeds sends a login and messages byte by byte. The login must succeed, the
// messages arrive, and the connection count for its host.
func TestLoginByteByByteSucceeds(t *testing.T) {
	s := startPort(t)
	conn, from, login := rawAt(t, s, "acme", "laptop")
	text := login + "SUB ahp.v1.acme.laptop.x 1\r\nPUB ahp.v1.acme.laptop.x 5\r\nhello\r\n"
	for i := range len(text) {
		if _, err := io.WriteString(conn, text[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	awaitLine(t, from, "PONG")
	awaitLine(t, from, "MSG ahp.v1.acme.laptop.x 1 5")
	awaitLine(t, from, "hello")
	s.port.mu.Lock()
	defer s.port.mu.Unlock()
	if n := s.port.conns[[2]string{"acme", "laptop"}]; n != 1 {
		t.Errorf("after a login sent byte by byte, the counted connections are %v; want 1 for acme's laptop", s.port.conns)
	}
}

// TestHostileInputHarmsNoOthers sends invalid and oversized input before and after a login. Where
// it must, the server ends the connection. Messages between others must always arrive.
func TestHostileInputHarmsNoOthers(t *testing.T) {
	s := startPort(t)
	others, err := agentAt(s, "acme", "quiet")
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	heard, err := others.SubscribeSync("ahp.v1.acme.quiet.x")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, says string
		loggedIn   bool
		ends       bool
	}{
		{"a publish before the login", "PUB x 1\r\ny\r\n", false, true},
		{"a login that never ends", "CONNECT {" + strings.Repeat(" ", 64<<10), false, true},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00", false, true},
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", false, true},
		{"a line that never ends", "PUB " + strings.Repeat("x", 64<<10), true, true},
		{"more than there may be", "PUB ahp.v1.acme.laptop.x 999999999\r\n", true, true},
		{"a length that is none", "PUB ahp.v1.acme.laptop.x 99999999999999999999\r\n", true, true},
		{"less than nothing", "PUB ahp.v1.acme.laptop.x -5\r\n", true, true},
		{"headers longer than the message", "HPUB ahp.v1.acme.laptop.x 50 10\r\n", true, true},
		{"another's subject", "PUB ahp.v1.acme.quiet.x 6\r\nforged\r\n", true, false},
		{"half a message", "PUB ahp.v1.acme.laptop.x 1000\r\nhalf", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, from, login := rawAt(t, s, "acme", "laptop")
			if c.loggedIn {
				_, _ = io.WriteString(conn, login)
				awaitLine(t, from, "PONG")
			}
			_, _ = io.WriteString(conn, c.says) // the server may close the connection in the middle
			if c.ends {
				_, err := io.Copy(io.Discard, from)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the connection is open after hostile input; want it closed")
				}
			}
			if err := others.Publish("ahp.v1.acme.quiet.x", []byte(c.name)); err != nil {
				t.Fatal(err)
			}
			if msg, err := heard.NextMsg(waitTime); err != nil || string(msg.Data) != c.name {
				t.Errorf("after hostile input, a different host receives %v, %v; want its message", msg, err)
			}
		})
	}
}

// FuzzLogin passes an arbitrary login through a loginLine in pieces. The bytes must come out
// unchanged, and jwt return the user JWT that the server would read.
func FuzzLogin(f *testing.F) {
	f.Add([]byte("CONNECT {\"jwt\":\"a.b.c\"}\r\nPING\r\n"), uint8(1))
	f.Add([]byte("CONNECT {\"jwt\":\"a\",\"JWT\":\"b\"}"), uint8(3))
	f.Add([]byte(strings.Repeat("x", 5000)+"\n"), uint8(0))
	f.Fuzz(func(t *testing.T, said []byte, piece uint8) {
		var from io.Reader = bytes.NewReader(said)
		switch piece % 3 {
		case 1:
			from = iotest.OneByteReader(from)
		case 2:
			from = iotest.HalfReader(from)
		}
		l := &loginLine{from: from}
		got, err := io.ReadAll(l)
		if err != nil || !bytes.Equal(got, said) {
			t.Fatalf("%d bytes have arrived, but %d were read: %v; want the same bytes", len(said), len(got), err)
		}
		if len(l.line) > maxLogin {
			t.Fatalf("%d bytes of a login line are kept; want at most %d", len(l.line), maxLogin)
		}
		line, _, _ := bytes.Cut(said, []byte("\n"))
		var want struct {
			JWT string `json:"jwt"`
		}
		if at := bytes.IndexByte(line, '{'); at >= 0 && len(line) <= maxLogin {
			_ = json.Unmarshal(line[at:], &want)
		}
		if user := l.jwt(); len(line) <= maxLogin && user != want.JWT {
			t.Errorf("the login is read as the user %q; want %q", user, want.JWT)
		}
	})
}
