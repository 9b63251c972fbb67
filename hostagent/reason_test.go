package hostagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"pgregory.net/rapid"
)

// TestClientsLearnNoAddress dials targets that are no AHP host. The error for the owner must name
// the upstream. The close reason for clients must name the problem without an address.
func TestClientsLearnNoAddress(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
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
			_ = c.Close()
		}
	}()
	forbidden := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	dir := t.TempDir()
	garbage := filepath.Join(dir, "private-program")
	if err := os.WriteFile(garbage, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name     string
		upstream Upstream
		want     string
	}{
		{"refuses", Upstream{URL: "ws://" + closed.Addr().String() + "/private-path"}, reasonNobody},
		{"no socket", Upstream{URL: "unix:" + filepath.Join(dir, "private-socket")}, reasonNobody},
		{"hangs", Upstream{URL: "ws://" + silent.Addr().String()}, reasonSilent},
		{"hangs up", Upstream{URL: "ws://" + rude.Addr().String()}, reasonHandshake},
		{"forbidden", Upstream{URL: wsURL(forbidden)}, "the host answers HTTP 403 instead of a WebSocket"},
		{"no name", Upstream{URL: "ws://private.invalid:7"}, reasonName},
		{"no token", Upstream{URL: wsURL(forbidden), TokenFile: filepath.Join(dir, "private-token")}, reasonToken},
		{"no program", Upstream{Command: []string{filepath.Join(dir, "private-none")}}, reasonProgram},
		{"a program that does not start", Upstream{Command: []string{garbage}}, reasonProgram},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), dialTime(test.name == "hangs"))
			defer cancel()
			_, err := test.upstream.dial(ctx, 1000)
			if err == nil {
				t.Fatal("dial succeeded; want an error")
			}
			if got := publicReason(err); got != test.want {
				t.Errorf("clients get the reason %q for %q; want %q", got, err, test.want)
			}
			if !strings.Contains(err.Error(), "upstream") {
				t.Errorf("the owner's reason is %q; want the upstream in it", err)
			}
		})
	}
	t.Run("a program that ends", func(t *testing.T) {
		sock, err := Upstream{Command: child("crash")}.dial(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, _, err = sock.Read()
		}
		if got := publicReason(fmt.Errorf("upstream %s: connection lost: %w", os.Args[0], err)); got != "the host's program ended: exit status 3" {
			t.Errorf("clients get the reason %q; want the program's end and exit status 3", got)
		}
	})
}

// TestReasonsAreOurWords wraps errors of all kinds, with an address in each. The close reason for
// clients must never contain an error's text.
func TestReasonsAreOurWords(t *testing.T) {
	const secret = "10.1.2.3:4567/private"
	address := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4567}
	causes := []error{
		errNotYet, errStart, errHangs, errUpstreamToken, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, os.ErrDeadlineExceeded,
		context.DeadlineExceeded, context.Canceled, errTooBig, errors.New(secret),
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES,
		&net.DNSError{Name: secret, Server: secret}, websocket.CloseError{Code: 1008, Reason: secret},
		&httpError{502, errors.New(secret)}, &programError{},
		&tls.CertificateVerificationError{Err: errors.New(secret)},
	}
	rapid.Check(t, func(t *rapid.T) {
		err := rapid.SampledFrom(causes).Draw(t, "cause")
		for range rapid.IntRange(0, 4).Draw(t, "depth") {
			switch rapid.IntRange(0, 4).Draw(t, "wrap") {
			case 0:
				err = fmt.Errorf("upstream ws://%s: %w", secret, err)
			case 1:
				err = &net.OpError{Op: rapid.SampledFrom([]string{"dial", "read", "write"}).Draw(t, "op"), Net: "tcp", Addr: address, Source: address, Err: err}
			case 2:
				err = &url.Error{Op: "Get", URL: "http://" + secret, Err: err}
			case 3:
				err = &fs.PathError{Op: "open", Path: "/" + secret, Err: err}
			case 4:
				err = errors.Join(errors.New(secret), err)
			}
		}
		said := publicReason(err)
		if said == "" || strings.ContainsAny(said, ":/\\") && !strings.HasPrefix(said, "the host's program ended: ") || strings.Contains(said, "10.1") || strings.Contains(said, "private") {
			t.Fatalf("clients get the reason %q for %q; want words without addresses or paths", said, err)
		}
	})
}
