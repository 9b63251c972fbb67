package registry_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// newThief connects as the host-agent acme/laptop, with a NATS library that permits every subject.
// It returns the connection, and a channel with its errors.
func newThief(t *testing.T, s *natssite.Site, opts ...nats.Option) (*nats.Conn, chan error) {
	t.Helper()
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	errs := make(chan error, 1000)
	opts = append(opts,
		nats.UserJWT(func() (string, error) { return cfg.Credentials(t.Context()) }, cfg.Sign), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err }))
	nc, err := natssite.Connect(s.URL(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, errs
}

// foreign returns subjects that a host-agent of acme/laptop must not use, of each family.
func foreign() (list []string) {
	for _, host := range []string{"acme.desktop", "acme.laptop2", "umbrella.laptop", "umbrella.desktop"} {
		for _, family := range []string{
			"chan.ahp-session:/1", "link.agent1.relay1.up", "link.agent1.relay1.down", "ctl.lease", "inbox.agent1.x.1", "anything",
		} {
			list = append(list, "ahp.v1."+host+"."+family)
		}
	}
	return append(list,
		"ahp.relays.v1.news", "ahp.relays.v1.region", "ahp.relays.v1.revoked", "ahp.relays.v1.to.relay1.lease", "_INBOX.abc.1", "_R_.abc",
		"$JS.API.INFO", "$JS.API.STREAM.CREATE.x", "$JS.API.STREAM.MSG.GET.x", "$JS.ACK.x.y.1.1.1.1.1", "$JSC.R.x", "$KV.ahp-registry.host.acme.laptop", "$KV.ahp-registry-east.host.acme.laptop", "$O.x.C.y",
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.USER.INFO", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.LIST",
		"$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ", "$SYS.ACCOUNT.x.CONNECT", "$SYS.REQ.USER.AUTH",
		"$GR.x", "$MQTT.x", "$LDS.x", "$NRG.x", "$SRV.PING")
}

// TestStolenCredentialsReachNoOther uses a stolen host-agent's credentials to publish, request and
// subscribe on foreign subjects. No other tenant, host or relay may get a message from it, and it
// may get none of theirs.
func TestStolenCredentialsReachNoOther(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	registry := registryWith(t, s, registry.Config{Instance: "relay1"})
	tenants := s.Tenants(t)
	natssite.Open(t, tenants, "umbrella")
	var hearers []chan *nats.Msg
	speakers := map[string]func(subject string, data []byte) error{}
	for _, tenant := range []string{"acme", "umbrella"} {
		in := make(chan *nats.Msg, 1000)
		c := natssite.DialRelay(t, broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: "relay2", Tenant: tenant})
		if _, err := c.Subscribe("ahp.v1."+tenant+".>", in); err != nil {
			t.Fatal(err)
		}
		hearers, speakers[tenant] = append(hearers, in), c.Publish
	}
	hearers = append(hearers, natssite.Subscribe(t, s.Relays(t), "ahp.relays.v1.>"))
	for _, host := range []string{"desktop", "laptop"} { // other host-agents listen, too
		hearers = append(hearers, natssite.Subscribe(t, natssite.DialAgent(t, s.AgentConfig(t, "umbrella", host, 0)), "ahp.v1.umbrella."+host+".>"))
	}
	hearers = append(hearers, natssite.Subscribe(t, natssite.DialAgent(t, s.AgentConfig(t, "acme", "desktop", 0)), "ahp.v1.acme.desktop.>"))

	thief, errs := newThief(t, s)
	own := "ahp.v1.acme.laptop.x"
	// Publish on each subject, also with reply subjects and headers.
	for _, subject := range foreign() {
		for _, err := range []error{
			thief.Publish(subject, []byte("stolen")),
			thief.PublishRequest(subject, own, []byte("stolen")),
			thief.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{"Nats-Msg-Id": {"1"}, "Nats-Trace-Dest": {subject}}, Data: []byte("stolen")}),
			// NATS does not check reply subjects. The answering side must check them, or the server
			// if nobody answers.
			thief.PublishRequest("ahp.v1.acme.laptop.nobody", subject, []byte("stolen")),
			thief.PublishRequest("ahp.v1.acme.laptop.ctl.lease", subject, []byte(`{"op":"hold","instance":"stolen","seq":1,"presence":{"state":"online"}}`)),
			thief.PublishMsg(&nats.Msg{Subject: "ahp.v1.acme.laptop.nobody", Header: nats.Header{"Nats-Trace-Dest": {subject}, "Nats-Trace-Only": {"true"}}, Data: []byte("stolen")}),
		} {
			if err != nil {
				t.Errorf("publishing on %s: %v; want no error at the sender", subject, err)
			}
		}
	}
	heard := make(chan *nats.Msg, 10000)
	wide := []string{
		">", "*", "*.>", "ahp.>", "ahp.*.>", "ahp.v1.>", "ahp.v1.*.>", "ahp.v1.*.*.>", "ahp.v1.*.laptop.>", "ahp.v1.acme.>", "ahp.v1.acme.*.chan.>",
		"ahp.v1.umbrella.>", "ahp.v1.*.*.ctl.lease", "ahp.relays.>", "$SYS.>", "$JS.>", "$KV.>", "_INBOX.>", "_INBOX.*", "_R_.>", "$*.>",
	}
	for _, subject := range append(foreign(), wide...) {
		if _, err := thief.ChanSubscribe(subject, heard); err != nil {
			t.Errorf("subscribing to %s: %v; want no error at the sender", subject, err)
		}
		for _, queue := range []string{"relays", "thieves", "*", ">"} {
			if _, err := thief.ChanQueueSubscribe(subject, queue, heard); err != nil {
				t.Errorf("subscribing to %s: %v; want no error at the sender", subject, err)
			}
		}
	}
	if err := thief.Flush(); err != nil {
		t.Fatalf("the server has disconnected the thief: %v; want only refusals", err)
	}
	natssite.Eventually(t, "complaints about subscriptions", func() bool { return len(errs) >= len(wide) })

	for _, subject := range foreign() {
		for tenant, publish := range speakers {
			if strings.HasPrefix(subject, "ahp.v1."+tenant) {
				if err := publish(subject, []byte("secret")); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if err := registry.Enrol("umbrella", "news"); err != nil { // relays publish this to each other
		t.Fatal(err)
	}
	// When these have arrived, all earlier messages have.
	for _, tenant := range []string{"acme", "umbrella"} {
		natssite.WantPassage(t, natssite.DialAgent(t, s.AgentConfig(t, tenant, "last", 0)),
			natssite.DialRelay(t, broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: "r", Tenant: tenant}), "ahp.v1."+tenant+".last.x")
	}
	if err := thief.Flush(); err != nil {
		t.Fatal(err)
	}
	for len(heard) > 0 {
		msg := <-heard
		t.Errorf("the thief received %q on %s; want nothing", msg.Data, msg.Subject)
	}
	for i, in := range hearers {
		for len(in) > 0 {
			msg := <-in
			ownSubject := strings.HasPrefix(msg.Subject, "ahp.v1.acme.laptop.")
			if !ownSubject && (strings.Contains(string(msg.Data), "stolen") || msg.Header.Get("Status") != "") {
				t.Errorf("subscription %d received %q, %v on %s; want nothing from the thief", i, msg.Data, msg.Header, msg.Subject)
			}
		}
	}
	if h, _ := registry.Lookup("acme", "laptop"); h.AgentInstance != "" {
		t.Errorf("the host's lease is held by %q after a request with stolen credentials; want no holder", h.AgentInstance)
	}
}

// TestForgedUsersAreRefused logs in with forged user JWTs: signed by an account of the thief's own,
// or changed after signing. The server must refuse each.
func TestForgedUsersAreRefused(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	natssite.Open(t, s.Tenants(t), "umbrella")
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := key.PublicKey()
	accounts := map[string]string{"system": s.Keys.Authority().SystemAccount(), "relays": s.Keys.Authority().RelaysAccount()}
	for _, tenant := range []string{"acme", "umbrella", "nobody"} {
		if accounts[tenant], err = s.Keys.Authority().TenantAccount(tenant); err != nil {
			t.Fatal(err)
		}
	}
	own, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	ownPublic, _ := own.PublicKey()
	login := func(userJWT string) {
		t.Helper()
		nc, err := natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return userJWT, nil }, key.Sign))
		if err == nil {
			nc.Close()
			t.Error("a forged user has connected; want a refusal")
		} else if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("Connect = %v; want %v", err, nats.ErrAuthorization)
		}
	}
	claims := func(issuerAccount string) *jwt.UserClaims {
		c := jwt.NewUserClaims(public)
		c.IssuerAccount = issuerAccount
		return c
	}
	for _, account := range append([]string{"", ownPublic}, accounts["system"], accounts["relays"], accounts["acme"], accounts["umbrella"], accounts["nobody"]) {
		text, err := claims(account).Encode(own) // signed by the thief's own account
		if err != nil {
			t.Fatal(err)
		}
		login(text)
	}
	// Valid JWTs, whose account or permissions are changed after signing.
	good, _, err := s.Keys.Authority().AgentUser("acme", "laptop", public, 0)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{`"iss":"` + accounts["acme"], `"iss":"` + accounts["umbrella"]},
		{`"iss":"`, `"issuer_account":"` + accounts["umbrella"] + `","iss":"`},
		{`ahp.v1.acme.laptop.\u003e`, `\u003e`},
		{`"exp":`, `"exp":9`},
	} {
		changed := strings.Replace(string(body), change[0], change[1], 1)
		if changed == string(body) {
			t.Fatalf("the token has no %s: %s", change[0], body)
		}
		login(parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(changed)) + "." + parts[2])
		login(base64.RawURLEncoding.EncodeToString([]byte(`{"typ":"JWT","alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(changed)) + ".")
	}
}

// A rawClient is a TCP connection on which a test writes the NATS protocol itself.
type rawClient struct {
	net.Conn
	in    *bufio.Reader
	nonce string
}

func dialRaw(t *testing.T, s *natssite.Site) *rawClient {
	t.Helper()
	c, err := net.Dial("tcp", s.Server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(natssite.Patience))
	r := &rawClient{Conn: c, in: bufio.NewReader(c)}
	line, err := r.in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Nonce string }
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil || info.Nonce == "" {
		t.Fatalf("the server's first line is %q, %v; want INFO with a nonce", line, err)
	}
	r.nonce = info.Nonce
	return r
}

// connect sends a login with cfg's credentials, and the JSON text more in CONNECT.
func (r *rawClient) connect(t *testing.T, cfg broker.AgentDialConfig, more string) {
	t.Helper()
	userJWT, err := cfg.Credentials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sig, err := cfg.Sign([]byte(r.nonce))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(r, `CONNECT {"jwt":%q,"sig":%q,"verbose":true,"headers":true,"no_responders":true,"echo":true%s}`+"\r\n",
		userJWT, base64.RawURLEncoding.EncodeToString(sig), more)
}

// until reads lines until one begins with one of texts, which it returns. At the end of the
// connection, it returns "the end".
func (r *rawClient) until(texts ...string) string {
	for {
		line, err := r.in.ReadString('\n')
		if err != nil {
			return "the end"
		}
		for _, text := range texts {
			if strings.HasPrefix(line, text) {
				return text
			}
		}
	}
}

// TestServersCommandsAreRefused logs in as a host-agent, and sends commands that only servers may
// send, and oversized input. The server must refuse them, and no message reach another tenant.
func TestServersCommandsAreRefused(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	natssite.Open(t, s.Tenants(t), "umbrella")
	umbrella, err := s.Keys.Authority().TenantAccount("umbrella")
	if err != nil {
		t.Fatal(err)
	}
	relay := natssite.DialRelay(t, broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: "r", Tenant: "umbrella"})
	heard := natssite.Subscribe(t, relay, "ahp.v1.umbrella.>")
	agent := func() broker.AgentDialConfig { return s.AgentConfig(t, "acme", "laptop", 0) }

	for name, more := range map[string]string{
		"account":              `,"account":"` + umbrella + `"`,
		"new account":          `,"account":"` + umbrella + `","new_account":true`,
		"a relay's user":       `,"user":"relay","pass":"relay"`,
		"remote account":       `,"remote_account":"` + umbrella + `"`,
		"import, export":       `,"import":{"allow":[">"]},"export":{"allow":[">"]}`,
		"cluster":              `,"cluster":"ahp-relays","name":"relay"`,
		"keys of another case": `,"Account":"` + umbrella + `"`,
	} {
		t.Run(name, func(t *testing.T) {
			r := dialRaw(t, s)
			r.connect(t, agent(), more)
			if r.until("+OK", "-ERR") == "+OK" { // the server may ignore the field
				fmt.Fprintf(r, "PUB ahp.v1.umbrella.laptop.x 6\r\nstolen\r\nSUB ahp.v1.umbrella.> 1\r\nPING\r\n")
				if got := r.until("-ERR", "PONG", "MSG"); got != "-ERR" {
					t.Errorf("the server answers with %s; want -ERR", got)
				}
			}
		})
	}
	for _, line := range []string{
		`INFO {"server_id":"x","nonce":"y","connect_urls":["127.0.0.1:1"],"cluster":"ahp-relays"}`,
		"RS+ " + umbrella + " ahp.v1.umbrella.>", "RS- " + umbrella + " ahp.v1.umbrella.>",
		"RMSG " + umbrella + " ahp.v1.umbrella.laptop.x 6\r\nstolen", "LS+ ahp.v1.umbrella.>", "LMSG ahp.v1.umbrella.laptop.x 6\r\nstolen",
		"A+ " + umbrella, "MSG ahp.v1.umbrella.laptop.x 1 6\r\nstolen", "HMSG x 1 12 12\r\nNATS/1.0\r\n\r\n",
		"PUB ahp.v1.acme.laptop.x 99999999999\r\n", "PUB ahp.v1.acme.laptop.x -1\r\n", "PUB ahp.v1.acme.laptop.x\r\n", "HPUB ahp.v1.acme.laptop.x 99 1\r\nstolen",
		"CONNECT {" + strings.Repeat(" ", 1<<20) + "}", strings.Repeat("x", 1<<16), "GET /nats HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		r := dialRaw(t, s)
		r.connect(t, agent(), "")
		if got := r.until("+OK", "-ERR"); got != "+OK" {
			t.Fatalf("the login got %s; want +OK", got)
		}
		fmt.Fprintf(r, "%s\r\n", line)
		if got := r.until("-ERR", "MSG"); got == "MSG" {
			t.Errorf("the server accepted the command %.40q; want -ERR", line)
		}
		r.until() // closed
	}
	// The same without a login.
	for _, line := range []string{"PUB ahp.v1.umbrella.laptop.x 6\r\nstolen", "SUB > 1", `CONNECT {"jwt":"` + strings.Repeat("x", 1<<20) + `"}`, "PING\r\nCONNECT {}", `CONNECT []`, "\x00"} {
		r := dialRaw(t, s)
		fmt.Fprintf(r, "%s\r\n", line)
		if got := r.until("+OK", "MSG"); got != "the end" {
			t.Errorf("%.40q without a login: the server answers %s; want only the connection's end", line, got)
		}
	}
	natssite.WantPassage(t, relay, natssite.DialAgent(t, s.AgentConfig(t, "umbrella", "last", 0)), "ahp.v1.umbrella.last.x")
	if len(heard) > 0 {
		t.Errorf("a server-only command sent a message on %s; want none", (<-heard).Subject)
	}
}

// TestReplayedLoginIsRefused sends a login's signature on another connection, which has a different
// nonce. The server must refuse it. Credentials for names with wildcards or several tokens must not
// be issued.
func TestReplayedLoginIsRefused(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	first := dialRaw(t, s)
	second := dialRaw(t, s)
	second.nonce = first.nonce // a signature for the first connection's nonce
	second.connect(t, cfg, "")
	if got := second.until("+OK", "-ERR"); got != "-ERR" {
		t.Errorf("a signature for another login: %s; want -ERR", got)
	}
	first.connect(t, cfg, "")
	if got := first.until("+OK", "-ERR"); got != "+OK" {
		t.Errorf("the real login: %s; want +OK", got)
	}
	// Names that would change a subject.
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"*", ">", "a.b", "a b", "", "a\r\nSUB > 1", "é", strings.Repeat("a", 64), "A", "a\x00b"} {
		for _, pair := range [][2]string{{name, "laptop"}, {"acme", name}} {
			if _, _, err := s.Keys.Authority().AgentUser(pair[0], pair[1], key.Public(), 0); err == nil {
				t.Errorf("AgentUser(%q, %q) succeeded; want an error", pair[0], pair[1])
			}
			if _, err := s.Keys.Tokens().IssueHost(auth.Enrolment{Tenant: pair[0], Host: pair[1], Expires: time.Now().Add(time.Hour)}); err == nil {
				t.Errorf("IssueHost(%q, %q) succeeded; want an error", pair[0], pair[1])
			}
			if _, err := broker.DialAgent(t.Context(), broker.AgentDialConfig{
				URLs: []string{s.URL()}, Tenant: pair[0], Host: pair[1], Instance: "i", Sign: key.SignNonce,
				Credentials: func(context.Context) (string, error) { return "", nil },
			}); err == nil {
				t.Errorf("DialAgent for %q/%q succeeded; want an error", pair[0], pair[1])
			}
		}
	}
}
