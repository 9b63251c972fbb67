package acmedns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/libdns/libdns"
	"github.com/miekg/dns"
)

// A Provider sets records in DNS.
type Provider struct {
	records certmagic.DNSProvider
}

// ParseProvider parses "exec:/path/to/program" or "rfc2136:ns.example.com".
// The latter needs a key file in the format of BIND's tsig-keygen.
func ParseProvider(text, keyFile string) (Provider, error) {
	kind, rest, _ := strings.Cut(text, ":")
	switch {
	case kind == "exec" && keyFile != "":
		return Provider{}, errors.New("the DNS provider \"exec:\" takes no key file; only \"rfc2136:\" does")
	case kind == "exec" && filepath.IsAbs(rest):
		return Provider{program(rest)}, nil
	case kind == "rfc2136" && rest != "":
		return newUpdates(rest, keyFile)
	}
	return Provider{}, fmt.Errorf("%q: want exec:/path/to/program, or rfc2136:ns.example.com", text)
}

func absolute(zone string, r libdns.RR) string { return dns.Fqdn(libdns.AbsoluteName(r.Name, zone)) }

// each calls do with each record until one fails, and returns the records that succeeded.
func each(records []libdns.Record, do func(libdns.RR) error) (done []libdns.Record, err error) {
	for _, record := range records {
		if err := do(record.RR()); err != nil {
			return done, err
		}
		done = append(done, record)
	}
	return done, nil
}

// A program is an executable that sets records.
type program string

// programTime bounds a program's run.
const programTime = 5 * time.Minute

func (p program) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return each(records, func(r libdns.RR) error { return p.run(ctx, "present", absolute(zone, r), r.Data) })
}

func (p program) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return each(records, func(r libdns.RR) error { return p.run(ctx, "cleanup", absolute(zone, r), r.Data) })
}

func (p program) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	command := exec.CommandContext(ctx, string(p), args...)
	command.WaitDelay = time.Second
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", p, args[0], err, lastLine(out.String()))
	}
	return nil
}

func lastLine(text string) string {
	const most = 300
	text = strings.TrimSpace(text)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	return text[:min(len(text), most)]
}

// updates sends updates to a DNS server.
type updates struct {
	server         string
	key, algorithm string // names
	secret         string // base64
}

// keyForm matches a TSIG key in BIND's configuration.
var keyForm = regexp.MustCompile(`(?s)key\s+"?([^"\s{]+)"?\s*\{(.*?)\}`)

var (
	algorithmForm = regexp.MustCompile(`algorithm\s+"?([A-Za-z0-9.-]+)"?\s*;`)
	secretForm    = regexp.MustCompile(`secret\s+"?([A-Za-z0-9+/=]+)"?\s*;`)
)

// algorithms are the supported TSIG algorithms.
var algorithms = map[string]string{
	"hmac-sha1": dns.HmacSHA1, "hmac-sha224": dns.HmacSHA224, "hmac-sha256": dns.HmacSHA256, "hmac-sha384": dns.HmacSHA384, "hmac-sha512": dns.HmacSHA512,
}

func newUpdates(server, keyFile string) (Provider, error) {
	if keyFile == "" {
		return Provider{}, errors.New("rfc2136 needs a key file as written by tsig-keygen: unsigned updates are not supported")
	}
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return Provider{}, err
	}
	key := keyForm.FindSubmatch(text)
	if key == nil {
		return Provider{}, fmt.Errorf("%s: no key found; want a file as written by tsig-keygen", keyFile)
	}
	algorithm, secret := algorithmForm.FindSubmatch(key[2]), secretForm.FindSubmatch(key[2])
	if algorithm == nil || secret == nil || algorithms[strings.ToLower(string(algorithm[1]))] == "" {
		return Provider{}, fmt.Errorf("%s: key lacks a secret or a supported algorithm", keyFile)
	}
	if _, _, err := net.SplitHostPort(server); err != nil {
		server = net.JoinHostPort(server, "53")
	}
	u := &updates{server: server, key: dns.Fqdn(string(key[1])), algorithm: algorithms[strings.ToLower(string(algorithm[1]))], secret: string(secret[1])}
	return Provider{u}, nil
}

func (u *updates) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return each(records, func(r libdns.RR) error { return u.update(ctx, zone, r, (*dns.Msg).Insert) })
}

func (u *updates) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return each(records, func(r libdns.RR) error { return u.update(ctx, zone, r, (*dns.Msg).Remove) })
}

// updateTime bounds a server's answer.
const updateTime = 30 * time.Second

func (u *updates) update(ctx context.Context, zone string, r libdns.RR, change func(*dns.Msg, []dns.RR)) error {
	header := dns.RR_Header{Name: absolute(zone, r), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: uint32(r.TTL.Seconds())}
	m := new(dns.Msg).SetUpdate(dns.Fqdn(zone))
	change(m, []dns.RR{&dns.TXT{Hdr: header, Txt: []string{r.Data}}})
	m.SetTsig(u.key, u.algorithm, 300, time.Now().Unix())
	client := &dns.Client{Net: "tcp", Timeout: updateTime, TsigSecret: map[string]string{u.key: u.secret}}
	answer, _, err := client.ExchangeContext(ctx, m, u.server)
	if err != nil {
		return fmt.Errorf("DNS server %s: %w", u.server, err)
	}
	if answer.Rcode != dns.RcodeSuccess {
		return fmt.Errorf("DNS server %s refused the update of %s: %s", u.server, header.Name, dns.RcodeToString[answer.Rcode])
	}
	return nil
}
