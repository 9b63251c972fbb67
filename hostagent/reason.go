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

// Close reasons while the host is away. Clients, and people with access to the host,
// may read them, so they never contain the host's addresses, names or paths. The
// owner finds these details in the log, and with "host-agent check".
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

// An httpError reports that the host answered with an HTTP response in place of a
// WebSocket.
type httpError struct {
	status int
	err    error
}

func (e *httpError) Error() string { return e.err.Error() }
func (e *httpError) Unwrap() error { return e.err }

// A handshakeError reports that the host accepted the connection and then opened no
// WebSocket.
type handshakeError struct{ error }

func (e handshakeError) Unwrap() error { return e.error }

// A programError reports the end of the host program.
type programError struct{ state *os.ProcessState }

func (e *programError) Error() string { return fmt.Sprintf("the program ended: %v", e.state) }

// Errors that have a close reason of their own.
var (
	errUpstreamToken = errors.New("upstream token file")
	errStart         = errors.New("the program does not start")
	errHangs         = errors.New("does not answer: is this an AHP host's port?")
)

// publicReason returns the close reason for a connection error. It does not contain
// the error's text, in which there may be an address.
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

// isEnd reports whether an error means that the connection has ended.
func isEnd(err error) bool {
	var closed websocket.CloseError
	return errors.As(err, &closed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// reach classifies an error: out is true if the host's machine cannot be reached;
// unacknowledged is true if that machine acknowledged nothing for the time limit.
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
