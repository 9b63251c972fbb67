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

// Host-agents are admitted at the rate at which they complete their arrivals
// ([admission.Arrivals]), because all of them may arrive together. An arrival lasts from
// the request for a challenge, or from the WebSocket handshake of a host-agent that has
// credentials, to the NATS server's response to the login.

// logsIn reports whether a request for a challenge or credentials precedes a login at this
// relay. Challenges have further uses, and a host-agent may log in at a NATS server of its
// own.
func (a *API) logsIn(r *http.Request) bool {
	return a.NATS != nil && r.Header.Get(broker.InstanceHeader) != ""
}

// busy refuses a host-agent, and gives the time at which to return. A host-agent that requests
// an idle connection is online, so the registry need not expect it.
func (a *API) busy(w http.ResponseWriter, r *http.Request, after time.Duration) {
	if r.Header.Get(broker.StandbyHeader) == "" {
		a.Registry.Arrivals.Expect(time.Now().Add(after))
	}
	seconds := retryafter.Set(w.Header(), after)
	authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": fmt.Sprintf("many host-agents arrive at this relay; return in %ds", seconds)})
}

// full returns the time after which a host-agent may return if it returns too early to a crowd,
// or requests an idle connection, which can wait, and otherwise 0. It does not verify the token:
// in a crowd, verification would take most of the relay's time, although most host-agents must
// return. So it believes nothing that the token says: see [admission.Arrivals.Full].
func (a *API) full(r *http.Request) (after time.Duration) {
	if !a.arrivals.Crowded() {
		return 0
	}
	if r.Header.Get(broker.StandbyHeader) != "" {
		return idleRetry
	}
	token, _ := auth.Bearer(r.Header.Get("Authorization"))
	tenant, host, err := auth.PeekHost(token)
	if err != nil {
		return 0 // the caller refuses the token
	}
	return a.arrivals.Full(tenant, host)
}

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
	return &login{Conn: server, tail: []byte{'\n'}, done: done}
}

// pong is the server's response to the PING that follows a host-agent's login. It begins a
// line.
var pong = []byte("\nPONG\r\n")

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

func (l *login) Close() error {
	l.done(false)
	return l.Conn.Close()
}
