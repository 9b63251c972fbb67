package agents

import (
	"bytes"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"time"

	"ahprelay/broker"
	"ahprelay/gateway/authn"
)

// Host-agents that arrive together are admitted at the rate at which their requests
// complete ([admission.Arrivals]): requests for credentials, and logins at the NATS
// server. A login lasts from the WebSocket's handshake to the server's answer.

// busy tells a host-agent when to return.
func (a *API) busy(w http.ResponseWriter, after time.Duration) {
	seconds := max(1, int(math.Ceil(after.Seconds())))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	authn.WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": fmt.Sprintf("many host-agents arrive at this relay; return in %ds", seconds)})
}

// loginTime bounds the time for which a login counts. The server has closed the connection
// by then.
const loginTime = 2 * broker.DialTimeout

// A login is a connection to the NATS server that counts as an arrival until the server
// has answered the login.
type login struct {
	net.Conn
	done func() // called once or more

	// Owned by Read.
	seen bool   // the answer
	tail []byte // the last bytes before it
}

func newLogin(server net.Conn, done func()) *login {
	late := time.AfterFunc(loginTime, done)
	return &login{Conn: server, tail: []byte{'\n'}, done: func() { late.Stop(); done() }}
}

// pong is the server's answer to the PING that follows a host-agent's login, behind the
// end of another line.
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
		l.done()
		return n, err
	}
	l.tail = append([]byte(nil), l.tail[max(0, len(l.tail)-len(pong)):]...)
	return n, err
}

// Close implements [net.Conn].
func (l *login) Close() error {
	l.done()
	return l.Conn.Close()
}
