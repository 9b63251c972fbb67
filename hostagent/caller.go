package hostagent

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	"ahprelay/auth/gate"
	"ahprelay/routing"
)

// A caller is who a connection to the host is for, as the relay has verified
// it. The host-agent's own connection has none.
type caller struct {
	tenant, subject, access, conn string

	room roomFunc // for what the host sends there
}

// caller returns who the connection is for.
func (c *hostConn) caller() *caller {
	return &caller{tenant: c.agent.tenant, subject: c.open.Subject, access: string(c.policy.Access), conn: c.open.ID, room: c.room}
}

// roomFor says when a long message to the caller may be read. What the host
// sends to the host-agent itself waits for nobody.
func (who *caller) roomFor() roomFunc {
	if who == nil {
		return nil
	}
	return who.room
}

// fields are what a host is told: a name, and a text without control
// characters.
func (who *caller) fields() [][2]string {
	return [][2]string{{"Subject", who.subject}, {"Tenant", who.tenant}, {"Access", who.access}, {"Connection", who.conn}}
}

// header is what a host hears of the caller when a WebSocket begins, see the
// package documentation.
func (who *caller) header() http.Header {
	if who == nil {
		return nil
	}
	header := http.Header{}
	for _, f := range who.fields() {
		header.Set("AHP-Relay-"+f[0], url.PathEscape(f[1]))
	}
	return header
}

// environmentPrefix begins the variables with which a command is told who its
// caller is.
const environmentPrefix = "AHP_REMOTE_"

// environment is that of a command: the host-agent's own, and of the caller no
// more than is true.
func (who *caller) environment() (list []string) {
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(strings.ToUpper(variable), environmentPrefix) {
			list = append(list, variable)
		}
	}
	if who == nil {
		return list
	}
	for _, f := range who.fields() {
		list = append(list, environmentPrefix+strings.ToUpper(f[0])+"="+url.PathEscape(f[1]))
	}
	return list
}

// dialForClient connects to the host for a client. The host may take its time,
// as if the client had come to it straight.
func (a *Agent) dialForClient(ctx context.Context, who *caller) (hostSocket, error) {
	upstream := a.cfg.Upstream
	upstream.caller = who
	return a.dialUpstream(ctx, upstream)
}

// dialForMonitor connects to the host for the host-agent itself. The connection
// ends when the host's machine acknowledges nothing for the resume time.
func (a *Agent) dialForMonitor(ctx context.Context, accepted func()) (hostSocket, error) {
	upstream := a.cfg.Upstream
	upstream.accepted, upstream.unacked = accepted, a.cfg.Resume
	return a.dialUpstream(ctx, upstream)
}

// dialUpstream connects to the host. That nobody is there says that the host
// process has ended.
func (a *Agent) dialUpstream(ctx context.Context, upstream Upstream) (hostSocket, error) {
	sock, err := upstream.dial(ctx, a.cfg.MaxFrame)
	if isNobodyThere(err) {
		a.subjects.HostEnded()
		a.known.Ended()
		a.canvases.Ended(a.known)
	}
	return sock, err
}

// isNobodyThere reports whether nothing listens where the host did, as opposed
// to a host that is busy, hangs or refuses. Of a command it is never said: each
// of its processes has one client.
func isNobodyThere(err error) bool {
	const windowsRefused = syscall.Errno(10061) // WSAECONNREFUSED
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" &&
		(errors.Is(dial, syscall.ECONNREFUSED) || errors.Is(dial, windowsRefused) || errors.Is(dial, fs.ErrNotExist))
}

// who is what gates are told of a client.
func (a *Agent) who(open routing.Open, policy gate.Policy) gate.User {
	who := gate.User{Subject: open.Subject, Write: policy.Speaks()}
	switch {
	case a.cfg.NoReverse:
		who.Reverse = gate.ReverseNever
	case policy.Reverse:
		who.Reverse = gate.ReverseAlways
	}
	return who
}
