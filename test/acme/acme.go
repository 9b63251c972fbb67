// Package acme is an ACME authority and its DNS server for tests, both within this
// process.
package acme

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"

	"ahprelay/test/testca"
)

// Key is a key in tsig-keygen's format.
const Key = `key "relay-key" {
	algorithm hmac-sha256;
	secret "c2VjcmV0LW9mLXRoZS1yZWxheS1hbmQtaXRzLWRucw==";
};
`

// Zone is the test DNS server's zone.
const Zone = "example.test."

// A DNS serves Zone, accepts updates signed with Key, and also serves records from a directory.
type DNS struct {
	Addr string
	dir  string

	mu      sync.Mutex // guards the fields below
	records map[string]string
	updates int // accepted updates
}

// StartDNS starts a DNS server.
func StartDNS(t testing.TB) *DNS {
	t.Helper()
	s := &DNS{dir: t.TempDir(), records: map[string]string{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Addr = l.Addr().String()
	p, err := net.ListenPacket("udp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{"relay-key.": "c2VjcmV0LW9mLXRoZS1yZWxheS1hbmQtaXRzLWRucw=="}
	accept := func(h dns.Header) dns.MsgAcceptAction { return dns.MsgAccept } // updates too
	for _, server := range []*dns.Server{
		{Listener: l, Handler: s, TsigSecret: secrets, MsgAcceptFunc: accept}, {PacketConn: p, Handler: s, TsigSecret: secrets, MsgAcceptFunc: accept},
	} {
		started, done := make(chan struct{}), make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(done)
			_ = server.ActivateAndServe()
		}()
		<-started // Shutdown has no effect before
		t.Cleanup(func() { _ = server.Shutdown(); <-done })
	}
	return s
}

// ServeDNS implements [dns.Handler].
func (s *DNS) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	switch {
	case r.Opcode == dns.OpcodeUpdate && (r.IsTsig() == nil || w.TsigStatus() != nil):
		m.Rcode = dns.RcodeRefused
	case r.Opcode == dns.OpcodeUpdate:
		s.update(r)
		m.SetTsig("relay-key.", dns.HmacSHA256, 300, time.Now().Unix())
	default:
		s.answer(m, r.Question[0])
	}
	_ = w.WriteMsg(m)
}

func (s *DNS) update(r *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates++
	for _, rr := range r.Ns {
		txt, ok := rr.(*dns.TXT)
		switch {
		case ok && rr.Header().Class == dns.ClassINET:
			s.records[rr.Header().Name] = txt.Txt[0]
		default:
			delete(s.records, rr.Header().Name)
		}
	}
}

// Records returns all current records.
func (s *DNS) Records() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.records)
	files, _ := os.ReadDir(s.dir)
	for _, f := range files {
		value, _ := os.ReadFile(filepath.Join(s.dir, f.Name()))
		all[f.Name()] = strings.TrimSpace(string(value))
	}
	return all
}

func (s *DNS) answer(m *dns.Msg, q dns.Question) {
	soa := &dns.SOA{Hdr: dns.RR_Header{Name: Zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}, Ns: "ns." + Zone, Mbox: "x." + Zone, Serial: 1}
	name := strings.ToLower(q.Name)
	if value, ok := s.Records()[name]; ok && q.Qtype == dns.TypeTXT {
		m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 1}, Txt: []string{value}})
		return
	}
	switch {
	case name == Zone && q.Qtype == dns.TypeSOA:
		m.Answer = append(m.Answer, soa)
	case !dns.IsSubDomain(Zone, name):
		m.Rcode = dns.RcodeNameError
	default:
		m.Ns = append(m.Ns, soa)
	}
}

// Start starts an authority that verifies records with a DNS server.
func Start(t testing.TB, resolver string) (directory string) {
	t.Helper()
	if err := os.Setenv("PEBBLE_VA_NOSLEEP", "1"); err != nil { // else it waits like public authorities
		t.Fatal(err)
	}
	quiet, store := log.New(io.Discard, "", 0), db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 3600}})
	front := wfe.New(quiet, store, va.New(quiet, 80, 443, false, resolver, store), issuer, nil, false, false, 0, 0)
	certificate, err := testca.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(front.Handler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL + "/dir"
}

// Updates returns the number of accepted updates.
func (s *DNS) Updates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updates
}

// KeyFile writes Key to a file, and returns its name.
func (s *DNS) KeyFile(t testing.TB) string { return write(t, Key) }

// Hook writes a program that sets records without an update, and returns its name.
func (s *DNS) Hook(t testing.TB) string {
	return write(t, fmt.Sprintf("#!/bin/sh\ncase $1 in\npresent) echo \"$3\" >'%[1]s'/\"$2\" ;;\ncleanup) rm '%[1]s'/\"$2\" ;;\nesac\n", s.dir))
}

func write(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}
