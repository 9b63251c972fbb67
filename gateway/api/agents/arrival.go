package agents

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/gateway/authn"
	"ahprelay/internal/retryafter"
)

// Requests for credentials and logins at the NATS server are admitted at the rate at
// which they complete ([admission.Arrivals]), because all host-agents may arrive
// together. A login lasts from the WebSocket handshake to the server's response.

// busy refuses a host-agent, and gives the time at which to return.
func (a *API) busy(w http.ResponseWriter, after time.Duration) {
	a.Registry.Arrivals.Expect(time.Now().Add(after))
	seconds := retryafter.Set(w.Header(), after)
	authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": fmt.Sprintf("many host-agents arrive at this relay; return in %ds", seconds)})
}

// full returns 0, or the time after which a host-agent may return because too many of
// its tenant request credentials. It does not verify the token: when four times as many
// arrive as the relay can admit, verification would take most of the relay's time, and
// only those who return later would benefit.
func (a *API) full(r *http.Request) (after time.Duration) {
	if !a.enrolments.Crowded() {
		return 0
	}
	token, _ := auth.Bearer(r.Header.Get("Authorization"))
	tenant, _, err := auth.PeekHost(token)
	if err != nil {
		return 0 // serveChallenge refuses the token
	}
	return a.enrolments.Full(tenant)
}

// loginTime is how long a login may count as incomplete. The NATS server has closed the
// connection by then.
const loginTime = 2 * broker.DialTimeout

// A login is a connection to the NATS server. It counts as an arrival until the server
// has responded to the host-agent's login.
type login struct {
	net.Conn
	done func(completed bool) // ends the arrival; may be called repeatedly

	// Used only by Read.
	seen bool   // the server has responded
	tail []byte // end of the bytes read before the response
}

func newLogin(server net.Conn, done func(completed bool)) *login {
	late := time.AfterFunc(loginTime, func() { done(false) })
	return &login{Conn: server, tail: []byte{'\n'}, done: func(completed bool) { late.Stop(); done(completed) }}
}

// pong is the server's response to the PING that follows a host-agent's login. It is
// preceded by the end of a line.
var pong = []byte("\nPONG\r\n")

// Read implements [net.Conn].
func (l *login) Read(p []byte) (n int, err error) {
	n, err = l.Conn.Read(p)
	if l.seen {
		return n, err
	}
	l.tail = append(l.tail, p[:n]...)
	if err != nil || bytes.Contains(l.tail, pong) {
		l.seen, l.tail = true, nil
		l.done(err == nil)
		return n, err
	}
	l.tail = append([]byte(nil), l.tail[max(0, len(l.tail)-len(pong)):]...)
	return n, err
}

// Close implements [net.Conn].
func (l *login) Close() error {
	l.done(false)
	return l.Conn.Close()
}
