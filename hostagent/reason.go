package hostagent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/coder/websocket"
)

// Close reasons for a host that is away. They never contain addresses, names or paths
// of the host, because clients and people with access to it must not learn those. The
// owner finds them in the log and with host-agent check.
const (
	reasonSilent      = "the host does not answer"
	reasonNobody      = "nothing listens at the host's address"
	reasonEnded       = "the connection to the host ended"
	reasonUnreachable = "the host's machine cannot be reached"
	reasonName        = "the host's name is not known"
	reasonCertificate = "the host's certificate is invalid"
	reasonProgram     = "the host's program does not start"
	reasonToken       = "the host's token cannot be read"
	reasonHandshake   = "the host opens no WebSocket"
	reasonOther       = "the host cannot be reached"
)

// An httpError reports an HTTP response in place of a WebSocket.
type httpError struct {
	status int
	err    error
}

func (e *httpError) Error() string { return e.err.Error() }
func (e *httpError) Unwrap() error { return e.err }

// A handshakeError reports a host that accepted a connection without opening a
// WebSocket.
type handshakeError struct{ error }

func (e handshakeError) Unwrap() error { return e.error }

// A programError reports the end of the host program.
type programError struct{ state *os.ProcessState }

func (e *programError) Error() string { return fmt.Sprintf("the program ended: %v", e.state) }

// Distinguishable causes of errors.
var (
	errUpstreamToken = errors.New("upstream token file")
	errStart         = errors.New("the program does not start")
	errHangs         = errors.New("does not answer: is this an AHP host's port?")
)

// publicReason returns the close reason for a connection error. It never contains the
// error's own text, which may contain an address.
func publicReason(err error) string {
	var answer *httpError
	var program *programError
	var handshake handshakeError
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	_, outOfReach := reach(err)
	switch {
	case errors.Is(err, errNotYet):
		return errNotYet.Error()
	case errors.As(err, &answer):
		return fmt.Sprintf("the host answers HTTP %d instead of a WebSocket", answer.status)
	case errors.As(err, &program):
		return "the host's program ended: " + program.state.String()
	case errors.Is(err, errUpstreamToken):
		return reasonToken
	case errors.Is(err, errStart):
		return reasonProgram
	case errors.As(err, &name):
		return reasonName
	case errors.As(err, &certificate):
		return reasonCertificate
	case isRefused(err):
		return reasonNobody
	case outOfReach:
		return reasonUnreachable
	case errors.Is(err, errHangs):
		return reasonSilent
	case errors.As(err, &handshake):
		return reasonHandshake
	case isEnd(err):
		return reasonEnded
	}
	return reasonOther
}

// isEnd reports whether an error means a connection's end.
func isEnd(err error) bool {
	var closed websocket.CloseError
	return errors.As(err, &closed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// reach classifies an error: out reports that the host's machine is unreachable, and
// unacknowledged that it acknowledged nothing for the limit.
func reach(err error) (unacknowledged, out bool) {
	var name *net.DNSError
	var dial *net.OpError
	switch {
	case errors.As(err, &name):
		return false, false
	case errors.Is(err, syscall.ETIMEDOUT), errors.As(err, &dial) && dial.Op == "dial" && dial.Timeout():
		return true, true
	}
	return false, errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.ENETDOWN)
}
