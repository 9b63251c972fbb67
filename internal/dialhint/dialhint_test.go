package dialhint_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"ahprelay/internal/dialhint"
)

// TestFailuresLeadToAdvice connects to real servers in wrong ways, for example with http in place
// of https. Error and Answer must add the right advice.
func TestFailuresLeadToAdvice(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for base, want := range map[string]string{
		secure.URL: "--ca-file",
		strings.Replace(plain.URL, "http", "https", 1): "use " + plain.URL,
	} {
		_, err := client.Get(base)
		if err == nil {
			t.Fatalf("GET %s returns no error; want one", base)
		}
		if got := dialhint.Error(base, err).Error(); !strings.Contains(got, err.Error()) || !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", base, got, want)
		}
	}
	wrong := strings.Replace(secure.URL, "https", "http", 1)
	answer, err := client.Get(wrong)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if got := dialhint.Answer(wrong, string(text)); !strings.Contains(got, secure.URL) {
		t.Errorf("the answer %q leads to the hint %q; want the https URL", text, got)
	}
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	if got := dialhint.Error(wrong, reset).Error(); !strings.Contains(got, secure.URL) {
		t.Errorf("the advice after a reset is %s; want the address with TLS", got)
	}
	if got := dialhint.Error(secure.URL, reset); got != reset {
		t.Errorf("a reset TLS connection leads to %v; want the same error", got)
	}
}

// TestMissingPortLeadsToAdvice refuses connections to addresses with and without a port. Only without one
// does the advice name the port on which relays listen by default.
func TestMissingPortLeadsToAdvice(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	if got := dialhint.Error("http://[::1]/", refused).Error(); !strings.Contains(got, "http://[::1]:8484/") {
		t.Errorf("the advice without a port is %s; want the address with the default port", got)
	}
	for _, base := range []string{"http://127.0.0.1:8484", "https://relay.example.com"} {
		if got := dialhint.Error(base, refused); got != refused {
			t.Errorf("%s leads to %v; want the same error", base, got)
		}
	}
}
