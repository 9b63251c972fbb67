package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/test/locked"
)

// raw sends bytes to a relay, and returns the relay's answer when the relay has closed
// the connection. It fails if the connection stays open for a minute.
func raw(t *testing.T, r *Relay, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", r.public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the relay answered %.80q, and then left the connection open: %v; want it closed", answer, err)
	}
	return string(answer)
}

var statusLine = regexp.MustCompile(`(?m)^HTTP/1\.\d \d`)

// Each handshake fails in a way that a proxy may miss, or with an end that a proxy may
// misjudge. A second request follows it. The relay answers only the first request,
// closes the connection, and passes nothing on to NATS.
func TestFailedHandshakeEndsTheConnection(t *testing.T) {
	var log locked.Buffer
	r := startRelay(t, func(cfg *RelayConfig) { cfg.Gateway.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	a := newFakeAgent(t, r)
	client, err := r.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	const good = upgrade + "Sec-WebSocket-Version: 13\r\n"
	smuggled := "GET /api/hosts HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer " + client + "\r\n\r\n"
	for name, test := range map[string]struct{ head, body string }{
		"another version":            {"GET /nats HTTP/1.1\r\n" + upgrade + "Sec-WebSocket-Version: 777\r\n", smuggled},
		"no version":                 {"GET /nats HTTP/1.1\r\n" + upgrade, smuggled},
		"no key":                     {"GET /nats HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n", smuggled},
		"another protocol":           {"GET /nats HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n", smuggled},
		"no connection header":       {"GET /nats HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n", smuggled},
		"POST":                       {"POST /nats HTTP/1.1\r\n" + good + "Content-Length: 0\r\n", smuggled},
		"content length":             {"GET /nats HTTP/1.1\r\n" + good + fmt.Sprintf("Content-Length: %d\r\n", len(smuggled)), smuggled},
		"chunks":                     {"GET /nats HTTP/1.1\r\n" + good + "Transfer-Encoding: chunked\r\n", "0\r\n\r\n" + smuggled},
		"chunks and content length":  {"GET /nats HTTP/1.1\r\n" + good + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + smuggled},
		"two content lengths":        {"GET /nats HTTP/1.1\r\n" + good + "Content-Length: 0\r\nContent-Length: 5\r\n", smuggled},
		"strange encoding":           {"GET /nats HTTP/1.1\r\n" + good + "Transfer-Encoding: xchunked\r\n", smuggled},
		"space before colon":         {"GET /nats HTTP/1.1\r\n" + good + "Content-Length : 5\r\n", smuggled},
		"another path":               {"GET //nats HTTP/1.1\r\n" + good, smuggled},
		"dots":                       {"GET /ahp/../nats HTTP/1.1\r\n" + good, smuggled},
		"slash":                      {"GET /nats/ HTTP/1.1\r\n" + good, smuggled},
		"host with a space":          {"GET /nats HTTP/1.1\r\nHost: a b\r\n" + good, smuggled},
		"HTTP/2 preface":             {"PRI * HTTP/2.0\r\n\r\nSM\r\n", smuggled},
		"HTTP/1.0":                   {"GET /nats HTTP/1.0\r\n" + good, smuggled},
		"client to host with a body": {"GET /ahp/laptop HTTP/1.1\r\n" + good + fmt.Sprintf("Content-Length: %d\r\n", len(smuggled)), smuggled},
	} {
		t.Run(name, func(t *testing.T) {
			token := a.token
			if strings.Contains(test.head, "/ahp/laptop") {
				token = client
			}
			head := test.head
			if !strings.Contains(head, "Host:") {
				head += "Host: relay\r\n"
			}
			answer := raw(t, r, head+"Authorization: Bearer "+token+"\r\n\r\n"+test.body)
			if len(statusLine.FindAllString(answer, -1)) > 1 || strings.HasPrefix(answer, "HTTP/1.1 101") || strings.Contains(answer, `"hosts"`) || strings.Contains(answer, "INFO ") {
				t.Errorf("the relay answers\n%s\nwant a single error response", answer)
			}
		})
	}
	if strings.Contains(log.String(), "event=host-connect") || strings.Contains(log.String(), "event=connect") {
		t.Errorf("a client or host has connected; want none:\n%s", log.String())
	}
}

// After a valid handshake, a host-agent sends bytes that are not WebSocket frames. The
// relay ends the connection, and the NATS server gets no byte.
func TestInvalidFramesDoNotReachNATS(t *testing.T) {
	r := startRelay(t, nil)
	a := newFakeAgent(t, r)
	answer := raw(t, r, "GET /nats HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer "+a.token+"\r\n\r\n"+
		"CONNECT {\"verbose\":true}\r\nPING\r\n"+strings.Repeat("PING\r\n", 100))
	if !strings.HasPrefix(answer, "HTTP/1.1 101") {
		t.Fatalf("answered %.200q; want a handshake", answer)
	}
	if strings.Contains(answer, "PONG") || strings.Contains(answer, "+OK") {
		t.Errorf("the NATS server has answered the client: %q; want nothing from it", answer)
	}
}

// A client sends nothing, or an incomplete request slowly. The relay closes the
// connection when the time for a request is over.
func TestIncompleteRequestsEnd(t *testing.T) {
	short := requestTimes{header: 300 * time.Millisecond, body: 600 * time.Millisecond}
	r := startRelay(t, func(cfg *RelayConfig) { cfg.times = short })
	a := newFakeAgent(t, r)
	for name, begin := range map[string]string{
		"nothing":       "",
		"a line":        "GET /ahp/laptop HTTP/1.1\r\n",
		"half a header": "GET /nats HTTP/1.1\r\nHost: relay\r\nAuthorization: Bea",
		"half a body":   "POST /agent/credentials HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer " + a.token + "\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", r.public.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, begin); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, conn)
				ended <- err
			}()
			trickle := time.NewTicker(50 * time.Millisecond)
			defer trickle.Stop()
			limit := time.After(time.Minute)
			for {
				select {
				case <-ended:
					return
				case <-trickle.C:
					if begin != "" {
						_, _ = io.WriteString(conn, "x") // fails once the connection is closed
					}
				case <-limit:
					t.Fatal("the relay still waits for the rest of a request; want it to close the connection")
				}
			}
		})
	}
}
