package hostagent

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"

	"ahprelay/auth/gate"
	"ahprelay/routing"
)

// A caller is the client behind a connection to the host, as verified by the
// relay. Connections that serve no client, such as the monitor's, have none.
type caller struct {
	tenant, subject, access, conn string

	room roomFunc // waits until there is room for a message from the host
}

// caller returns the client behind the connection.
func (c *hostConn) caller() *caller {
	return &caller{tenant: c.agent.tenant, subject: c.open.Subject, access: string(c.policy.Access), conn: c.open.ID, room: c.room}
}

// roomFor returns the function that waits for queue space before the host-agent
// reads a long message for this client. Connections of the host-agent itself
// never wait.
func (who *caller) roomFor() roomFunc {
	if who == nil {
		return nil
	}
	return who.room
}

// fields returns the caller's names and values for the host. The values have no
// control characters.
func (who *caller) fields() [][2]string {
	return [][2]string{{"Subject", who.subject}, {"Tenant", who.tenant}, {"Access", who.access}, {"Connection", who.conn}}
}

// header returns the caller's WebSocket handshake headers; see the package
// documentation.
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

// environmentPrefix is the prefix of the caller's environment variables.
const environmentPrefix = "AHP_REMOTE_"

// environment returns a command's environment: the host-agent's own, with the caller's
// variables replaced by verified values.
func (who *caller) environment() (list []string) {
	list = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(strings.ToUpper(variable), environmentPrefix) })
	if who == nil {
		return list
	}
	for _, f := range who.fields() {
		list = append(list, environmentPrefix+strings.ToUpper(f[0])+"="+url.PathEscape(f[1]))
	}
	return list
}

// dialForClient connects to the host for a client. It sets no time limit, so
// that a slow host behaves as it would without a relay.
func (a *Agent) dialForClient(ctx context.Context, who *caller) (hostSocket, error) {
	upstream := a.cfg.Upstream
	upstream.caller = who
	return a.dialUpstream(ctx, upstream)
}

// dialForMonitor connects to the host for no client: for the monitor, or to read
// sessions. The connection ends if the host's machine acknowledges no data for the
// resume time.
func (a *Agent) dialForMonitor(ctx context.Context, accepted func()) (hostSocket, error) {
	upstream := a.cfg.Upstream
	upstream.accepted, upstream.unacked = accepted, a.cfg.Resume
	return a.dialUpstream(ctx, upstream)
}

// dialUpstream connects to the host. A refused connection proves that the
// host's process has ended, so dialUpstream forgets the clientIds of all
// subjects, and the host's state.
func (a *Agent) dialUpstream(ctx context.Context, upstream Upstream) (hostSocket, error) {
	sock, err := upstream.dial(ctx, a.cfg.MaxFrame)
	if isRefused(err) {
		a.subjects.HostEnded()
		a.known.Ended()
		a.canvases.Ended(a.known)
	}
	return sock, err
}

// isRefused reports whether nothing listens at the host's address. It is false
// for a host that is busy, hangs or refuses the handshake, and for commands,
// where each connection has a process of its own.
func isRefused(err error) bool {
	const windowsRefused = syscall.Errno(10061) // WSAECONNREFUSED
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" &&
		(errors.Is(dial, syscall.ECONNREFUSED) || errors.Is(dial, windowsRefused) || errors.Is(dial, fs.ErrNotExist))
}

// who returns the client's subject and permissions, in the form that the gates need.
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
