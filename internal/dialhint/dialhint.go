// Package dialhint adds advice to connection errors: to use TLS, not to use TLS, to trust
// the relay's certificate, or to add the port.
package dialhint

import (
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"syscall"
)

// plainAtTLS is what Go's server answers to a plain request at a TLS port, with
// status 400.
const plainAtTLS = "Client sent an HTTP request to an HTTPS server"

// Error adds advice to the error of a request to base. If it has none, it returns err.
func Error(base string, err error) error {
	if hint := of(base, err); hint != "" {
		return &hinted{err, hint}
	}
	return err
}

// Answer returns advice for the text of an answer from base, or "".
func Answer(base, text string) string {
	if strings.Contains(text, plainAtTLS) {
		return "the server has TLS: use " + with("https", base)
	}
	return ""
}

type hinted struct {
	error
	hint string
}

func (e *hinted) Error() string { return e.error.Error() + "; " + e.hint }
func (e *hinted) Unwrap() error { return e.error }

func of(base string, err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	plain := strings.HasPrefix(base, "http://")
	switch {
	case errors.As(err, &unknown):
		return "this machine does not know the certificate's authority: give its certificate with --ca-file FILE, or in the environment with SSL_CERT_FILE"
	case errors.As(err, &name):
		return "use a name that the certificate contains"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no value for it
		return "the server has no TLS: use " + with("http", base)
	case plain && errors.Is(err, syscall.ECONNRESET):
		return "if the server has TLS, use " + with("https", base)
	case plain && errors.Is(err, syscall.ECONNREFUSED):
		return withoutPort(base)
	}
	return ""
}

// withoutPort returns advice for a plain address without a port: relay serve listens at 8484 by
// default, without TLS. For other addresses, it returns "".
func withoutPort(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Port() != "" {
		return ""
	}
	u.Host += ":8484"
	return "the URL has no port; a relay's default is " + u.String()
}

func with(scheme, base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return scheme + "://"
	}
	u.Scheme = scheme
	return u.String()
}
