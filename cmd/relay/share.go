package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/cmd/internal/cli"
)

// shareConnections is the default connection limit of a link: enough for a room of
// people with several tabs each.
const shareConnections = 64

type shareCmd struct {
	relayFlag
	Host    string        `help:"The session's host." required:"" placeholder:"HOST"`
	Channel string        `help:"The session, such as ahp-session:/…. The link covers everything that belongs to it, and nothing else." aliases:"session" required:"" placeholder:"URI"`
	Level   auth.Access   `help:"Level for the link's holders: look, talk, approve (tool calls), or operate (everything in the session, including commands on the host's machine). Default: look. --read and --write mean look and operate." enum:"look,talk,approve,operate,read,write," default:""`
	Read    bool          `help:"Same as --level look, the default." xor:"access"`
	Write   bool          `help:"Same as --level operate." xor:"access"`
	Files   bool          `help:"Include files in the session's working directories."`
	TTL     time.Duration `help:"The link's lifetime." default:"1h" least:"1s" name:"ttl"`
	Subject string        `help:"The link's subject, as it appears in logs. Default: a generated name." placeholder:"NAME"`
	URL     string        `help:"The relay's base URL for the people who get the link. Default: --relay, if given; otherwise the relay's --public-url, its address, or the name in its certificate." placeholder:"URL" name:"url"`

	MaxConnections int `help:"Concurrent connections allowed for the link at each relay; 0: the relay's limit." default:"${share_connections}" placeholder:"N"`

	NoQR bool `help:"Print no QR code." name:"no-qr"`
}

// Run prints a link that opens the console at a session, and, on a terminal, a QR code
// of it.
func (c *shareCmd) Run(ctx context.Context, s *streams) error {
	who, err := c.client()
	if err != nil {
		return err
	}
	relay, err := c.running()
	if err != nil {
		return err
	}
	base, err := relay.linkBase(c.URL)
	if err != nil {
		return err
	}
	if err := c.checkHost(ctx, relay); err != nil {
		return err
	}
	token, err := relay.keys.Tokens().IssueClient(who)
	if err != nil {
		return err
	}
	text := base + "/#" + url.Values{"host": {c.Host}, "session": {c.Channel}, "token": {token}}.Encode()
	if _, err := fmt.Fprintln(s.out, text); err != nil {
		return err
	}
	c.report(ctx, s, relay, base, token)
	if c.NoQR {
		return nil
	}
	return cli.PrintQR(s.out, s.err, text)
}

// checkHost returns an error if the running relay does not know the host, or if the host
// is online and does not know the session.
func (c *shareCmd) checkHost(ctx context.Context, relay *runningRelay) error {
	known, _, err := relay.hosts(ctx, c.Tenant)
	if err != nil {
		return nil // report says that no relay answers
	}
	var names []string
	for _, h := range known {
		if h.Host == c.Host {
			if h.State != registry.Online {
				return nil
			}
			return relay.checkSession(ctx, c.Tenant, c.Host, c.Channel)
		}
		names = append(names, h.Host)
	}
	return fmt.Errorf("--host %s: no such host of tenant %s; known are: %s", c.Host, c.Tenant, cmp.Or(strings.Join(names, ", "), "none"))
}

// checkSession returns an error if an online host does not know a session.
func (r *runningRelay) checkSession(ctx context.Context, tenant, host, session string) error {
	token, err := r.keys.Tokens().IssueClient(auth.Client{
		Tenant: tenant, Subject: "relay share", Hosts: []string{host}, Access: auth.AccessRead, Expires: time.Now().Add(time.Minute),
	})
	if err != nil {
		return err
	}
	if err := cli.CheckSession(ctx, r.client, r.at.URL, token, host, session); err != nil {
		return fmt.Errorf("--channel %w", err)
	}
	return nil
}

// client checks the flags, and returns the link's authority.
func (c *shareCmd) client() (who auth.Client, err error) {
	if strings.Contains(c.Channel, "*") || !strings.Contains(c.Channel, ":") {
		return who, fmt.Errorf("--channel %q: want the URI of one session, such as ahp-session:/abc", c.Channel)
	}
	if err := ahp.CheckName("--host", c.Host); err != nil {
		return who, err
	}
	level := c.Level
	switch {
	case level != "" && (c.Read || c.Write):
		return who, errors.New("--level cannot be used with --read or --write")
	case c.Write:
		level = auth.AccessWrite
	case level == "":
		level = auth.AccessRead
	}
	who = auth.Client{
		ID: rand.Text(), Tenant: c.Tenant, Subject: c.Subject, Hosts: []string{c.Host}, Channels: []string{c.Channel}, Files: c.Files,
		Access: level, Expires: time.Now().Add(c.TTL), MaxConnections: c.MaxConnections,
	}
	if who.Subject == "" {
		// Each link is a subject of its own. With a common subject, one holder could
		// resume the connection of a different link's holder.
		who.Subject = "link-" + strings.ToLower(who.ID[:10])
	}
	if who.Access == auth.AccessRead {
		who.Audience = who.Subject
	}
	return who, nil
}

// onlyHere reports whether a base URL works on this machine only.
func onlyHere(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	at, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && at.IsLoopback()
}

// report prints notes about the link, and asks the running relay to audit it.
func (c *shareCmd) report(ctx context.Context, s *streams, relay *runningRelay, base, token string) {
	id, expires, err := relay.keys.Tokens().TokenID(token)
	if err == nil {
		fmt.Fprintf(s.err, "Valid until %s. To revoke it: relay revoke --data-dir %s --token %s\n", expires.Local().Format(time.DateTime), cli.Quoted(c.DataDir), id)
	}
	if onlyHere(base) {
		fmt.Fprintln(s.err, "The link works on this machine only; give the relay's public address with --url.")
	}
	err = relay.operate(ctx, http.MethodPost, "/operator/shares", "relay share", map[string]string{"token": token}, &struct{}{})
	if errors.Is(err, errNoRelay) {
		fmt.Fprintln(s.err, "The link works once the relay runs, and is missing from its audit:", err)
	} else if err != nil {
		fmt.Fprintln(s.err, "The link is missing from the relay's audit:", err)
	}
}
