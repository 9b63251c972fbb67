package hostagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/test/testca"
)

func writeFile(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestMalformedUpstreamsAreRefused(t *testing.T) {
	token, empty, two := writeFile(t, " secret\n"), writeFile(t, "\n"), writeFile(t, "one two\n")
	const malformed = "upstream: the URL is malformed; want ws://host:port, wss://host, unix:/path or lock:/path"
	for _, test := range []struct {
		upstream Upstream
		want     string // a part of the error; empty if Check must accept it
	}{
		{Upstream{URL: "ws://127.0.0.1:1"}, ""},
		{Upstream{URL: "wss://host.example/path?x=1", TokenFile: token}, ""},
		{Upstream{URL: "unix:/run/host.sock", TokenFile: token}, ""},
		{Upstream{URL: "unix:///run/host.sock"}, ""},
		{Upstream{Command: []string{"sh", "-c", "exit"}}, ""},
		{Upstream{}, "want either a URL (ws://, wss://, unix: or lock:) or a command behind --"},
		{Upstream{URL: "ws://127.0.0.1:1", Command: []string{"sh"}}, "want either"},
		{Upstream{URL: "http://127.0.0.1:1?tkn=secret"}, `"http://127.0.0.1:1": scheme is "http"; want ws://, wss://, unix:/path or lock:/path`},
		{Upstream{URL: "localhost:8080"}, `scheme is "localhost"; want ws://`},
		{Upstream{URL: "127.0.0.1:8080"}, malformed},
		{Upstream{URL: "ws://host:port?tkn=secret"}, malformed},
		{Upstream{URL: "ws:///path?tkn=secret"}, "no host in the URL"},
		{Upstream{URL: "unix:host.sock?tkn=secret"}, "want unix:/path/to/socket"},
		{Upstream{URL: "ws://h", TokenFile: filepath.Join(token, "none")}, "upstream token file: open " + token},
		{Upstream{URL: "ws://h", TokenFile: empty}, empty + ": want one token on one line"},
		{Upstream{URL: "ws://h", TokenFile: two}, two + ": want one token on one line"},
		{Upstream{Command: []string{"sh"}, TokenFile: token}, "a token file requires a URL"},
		{Upstream{Command: []string{"no-such-program-here", "--token=secret"}}, `command "no-such-program-here"`},
	} {
		err := test.upstream.Check()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("Check of %+v: %v; want %q", test.upstream, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "=secret") {
			t.Errorf("Check's error contains the secret: %v; want it hidden", err)
		}
	}
}

func TestUpstreamIsLoggedWithoutSecrets(t *testing.T) {
	for _, test := range []struct {
		upstream Upstream
		want     string
	}{
		{Upstream{URL: "ws://user:secret@host:1/path?tkn=secret#secret"}, "ws://host:1/path"},
		{Upstream{URL: "unix:/run/host.sock"}, "unix:/run/host.sock"},
		{Upstream{URL: "ws://host:port?tkn=secret"}, "(malformed URL)"},
		{Upstream{Command: []string{"/usr/bin/host", "--key", "secret"}}, "/usr/bin/host"},
	} {
		if got := test.upstream.String(); got != test.want {
			t.Errorf("String of %+v = %q; want %q", test.upstream, got, test.want)
		}
	}
}

// serve starts an HTTP server on a loopback address, and stops it after the test.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// wsURL returns a server's URL with the scheme ws or wss.
func wsURL(server *httptest.Server) string { return "ws" + strings.TrimPrefix(server.URL, "http") }

// TestStrangeUpstreamsAreNamed dials servers that are no AHP host. The error must name the upstream
// and what is wrong, but not the token.
func TestStrangeUpstreamsAreNamed(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no program answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	rude, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer rude.Close()
	go func() {
		for {
			c, err := rude.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			fmt.Fprint(c, "220 mail.example ESMTP\r\n")
			_ = c.Close()
		}
	}()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	answer := func(status int) string {
		return wsURL(serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	}
	const port, token = "is this an AHP host's port?", "does the host want a token (--upstream-token-file)?"
	loop := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) })
	for _, test := range []struct{ name, url, want string }{
		{"web server", answer(http.StatusOK), "answers HTTP 200 instead of a WebSocket: " + port},
		{"not found", answer(http.StatusNotFound), "answers HTTP 404 instead of a WebSocket: " + port},
		{"unauthorized", answer(http.StatusUnauthorized), "answers HTTP 401 instead of a WebSocket: " + token},
		{"forbidden", answer(http.StatusForbidden), "answers HTTP 403 instead of a WebSocket: " + token},
		{"redirects", wsURL(loop), "answers HTTP 302 instead of a WebSocket: " + port},
		{"silent", "ws://" + silent.Addr().String(), "does not answer: " + port},
		{"another protocol", "ws://" + rude.Addr().String(), "malformed HTTP"},
		{"nobody", "ws://" + closed.Addr().String(), "connection refused"},
		{"no socket", "unix:" + filepath.Join(t.TempDir(), "none"), "no such file or directory"},
		{"no TLS", "wss" + strings.TrimPrefix(answer(http.StatusOK), "ws"), "server gave HTTP response to HTTPS client"},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := Upstream{URL: test.url + "?tkn=secret"}
			if strings.HasPrefix(test.url, "unix:") {
				u.URL = test.url
			}
			u.TokenFile = writeFile(t, "secret")
			ctx, cancel := context.WithTimeout(t.Context(), dialTime(test.name == "silent"))
			defer cancel()
			_, err := u.dial(ctx, 1000)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "upstream "+u.String()) {
				t.Errorf("dial: %v; want upstream %s … %s", err, u, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("dial's error contains the token: %v; want it hidden", err)
			}
		})
	}
}

// dialTime returns how long a test may dial a host: 1 s if it hangs, else a minute.
func dialTime(hangs bool) time.Duration {
	if hangs {
		return time.Second
	}
	return time.Minute
}

// echo is a WebSocket host that returns each message.
func echo(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	for {
		kind, message, err := ws.Read(context.Background())
		if err != nil || ws.Write(context.Background(), kind, message) != nil {
			return
		}
	}
}

// TestHostGetsTheCurrentToken changes the token file between connections. Each time, the host must
// get the current token and the URL's other parameters.
func TestHostGetsTheCurrentToken(t *testing.T) {
	queries := make(chan string, 10)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		queries <- r.URL.RequestURI()
		echo(w, r)
	})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	local := &http.Server{Handler: server.Config.Handler}
	go func() { _ = local.Serve(l) }()
	defer local.Close()
	file := writeFile(t, "first&odd=1\n")
	for _, test := range []struct{ url, token, want string }{
		{wsURL(server) + "/path?x=1", "first&odd=1\n", "/path?tkn=first%26odd%3D1&x=1"},
		{wsURL(server) + "?tkn=old", "second", "/?tkn=second"},
		{"unix:" + path, "third", "/?tkn=third"},
	} {
		if err := os.WriteFile(file, []byte(test.token), 0o600); err != nil {
			t.Fatal(err)
		}
		sock, err := Upstream{URL: test.url, TokenFile: file}.dial(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if got := <-queries; got != test.want {
			t.Errorf("the host-agent requested %s from the host; want %s", got, test.want)
		}
		sock.Close("done")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := (Upstream{URL: wsURL(server), TokenFile: file}).dial(t.Context(), 1000); err == nil || !strings.Contains(err.Error(), "upstream token file") {
		t.Errorf("dial without the token file = %v; want an error about the upstream token file", err)
	}
}

// TestWebSocketUpstream sends messages up to the limit to an echoing host, over TCP, TLS and a Unix
// socket. The messages must come back unchanged, and a longer message must fail as too big.
func TestWebSocketUpstream(t *testing.T) {
	const limit = 100_000
	for _, kind := range []string{"ws", "wss", "unix"} {
		t.Run(kind, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					return
				}
				defer ws.CloseNow()
				ws.SetReadLimit(-1)
				for {
					kind, message, err := ws.Read(context.Background())
					if err != nil || ws.Write(context.Background(), kind, message) != nil {
						return
					}
				}
			}))
			address := ""
			switch kind {
			case "ws":
				server.Start()
				address = wsURL(server)
			case "wss":
				certificate, err := testca.Certificate()
				if err != nil {
					t.Fatal(err)
				}
				server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
				server.EnableHTTP2 = true // HTTP/2 cannot carry this WebSocket
				server.StartTLS()
				address = wsURL(server)
			case "unix":
				path := filepath.Join(t.TempDir(), "s")
				l, err := net.Listen("unix", path)
				if err != nil {
					t.Fatal(err)
				}
				_ = server.Listener.Close()
				server.Listener = l
				server.Start()
				address = "unix:" + path
			}
			defer server.Close()
			sock, err := Upstream{URL: address}.dial(t.Context(), limit)
			if err != nil {
				t.Fatal(err)
			}
			defer sock.Close("done")
			for _, n := range []int{0, 1, limit} {
				for _, binary := range []bool{false, true} {
					want := strings.Repeat("x", n)
					if err := sock.Write([]byte(want), binary); err != nil {
						t.Fatal(err)
					}
					got, gotBinary, err := sock.Read()
					if string(got) != want || gotBinary != binary || err != nil {
						t.Errorf("read %d bytes, binary %v, %v; want %d, %v", len(got), gotBinary, err, n, binary)
					}
				}
			}
			if err := sock.Write(make([]byte, limit+1), false); err != nil {
				t.Fatal(err)
			}
			if _, _, err := sock.Read(); !tooBig(err) {
				t.Errorf("reading a message above the limit: %v; want too big", err)
			}
		})
	}
}

// TestCloseOfHungHost closes a connection while a message is being written to a host that reads
// nothing. Close must return in time, and Read and Write must end with an error.
func TestCloseOfHungHost(t *testing.T) {
	release := make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		<-release
		_ = ws.CloseNow()
	})
	defer close(release)
	sock, err := Upstream{URL: wsURL(server)}.dial(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() {
		_, _, err := sock.Read()
		ended <- err
	}()
	go func() { ended <- sock.Write(make([]byte, 64<<20), false) }()
	began := time.Now()
	sock.Close("client gone")
	if took := time.Since(began); took > 10*goodbyeTime {
		t.Errorf("Close took %v; want at most %v", took, goodbyeTime)
	}
	for range 2 {
		if err := <-ended; err == nil || errors.Is(err, io.EOF) {
			t.Errorf("Read or Write ended with %v; want an error", err)
		}
	}
}
