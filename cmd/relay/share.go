package main

import (
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
	"ahprelay/cmd/internal/cli"
)

// shareConnections is how many connections a link is good for at a time, unless
// the command says otherwise: a room of people with some tabs each.
const shareConnections = 64

type shareCmd struct {
	dataFlag
	relayFlag
	Host    string        `help:"Host of the session." required:"" placeholder:"HOST"`
	Channel string        `help:"The session, such as ahp-session:/…: what belongs to it is shared too, and nothing else." required:"" placeholder:"URI"`
	Level   auth.Access   `help:"What who has the link may do: look, talk, approve (what the agent asks for), or operate, and so do what it likes on its machine. Default: look. --read and --write are look and operate." enum:"look,talk,approve,operate,read,write," default:""`
	Read    bool          `help:"As --level look, the default." xor:"access"`
	Write   bool          `help:"As --level operate." xor:"access"`
	Files   bool          `help:"The files in the session's working directories, too."`
	TTL     time.Duration `help:"How long the link is good." default:"1h" name:"ttl"`
	Subject string        `help:"Who the link is for, as it stands in logs. Default: a name of the link's own." placeholder:"NAME"`
	URL     string        `help:"Base URL of the relay as others reach it. Default: what --relay says." placeholder:"URL" name:"url"`

	MaxConnections int `help:"How many connections the link is good for at a time, of all who have it; 0: as the relay is set." default:"${share_connections}" placeholder:"N"`

	NoQR bool `help:"Print no QR code." name:"no-qr"`
}

// Run prints a link that opens the console at a session, and, on a terminal, a
// QR code of it.
func (c *shareCmd) Run(ctx context.Context, s *streams) error {
	keys, err := c.keys()
	if err != nil {
		return err
	}
	who, err := c.client()
	if err != nil {
		return err
	}
	link, local, err := c.base()
	if err != nil {
		return err
	}
	token, err := keys.IssueClient(who)
	if err != nil {
		return err
	}
	text := link.String() + "#" + url.Values{"host": {c.Host}, "session": {c.Channel}, "token": {token}}.Encode()
	if _, err := fmt.Fprintln(s.out, text); err != nil {
		return err
	}
	c.tell(ctx, s, keys, token, local)
	if c.NoQR {
		return nil
	}
	return cli.PrintQR(s.out, s.err, text)
}

// client returns what the link allows.
func (c *shareCmd) client() (who auth.Client, err error) {
	switch {
	case c.TTL <= 0:
		return who, fmt.Errorf("--ttl is %v; want more than 0, such as 1h", c.TTL)
	case strings.Contains(c.Channel, "*") || !strings.Contains(c.Channel, ":"):
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
		// Links do not know each other: one subject for all would let who has
		// one take over what another began.
		who.Subject = "link-" + strings.ToLower(who.ID[:10])
	}
	if who.Access == auth.AccessRead {
		who.Audience = who.Subject
	}
	return who, nil
}

// base returns where the console is, and whether that is on this machine only.
func (c *shareCmd) base() (u *url.URL, local bool, err error) {
	flag, text := "--url", c.URL
	if text == "" {
		flag, text = "--relay", c.Relay
	}
	u, err = url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, false, fmt.Errorf("%s %q: want http://host:port or https://host", flag, text)
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + "/"
	at, err := netip.ParseAddr(u.Hostname())
	return u, u.Hostname() == "localhost" || err == nil && at.IsLoopback(), nil
}

// tell says what there is to know beside the link, and has the running relay
// note that it was made.
func (c *shareCmd) tell(ctx context.Context, s *streams, keys *auth.Keys, token string, local bool) {
	id, expires, err := keys.TokenID(token)
	if err == nil {
		fmt.Fprintf(s.err, "Good until %s. To take it back: relay revoke --data-dir %s --token %s\n", expires.Local().Format(time.DateTime), c.DataDir, id)
	}
	if local {
		fmt.Fprintln(s.err, "The link works on this machine only; say with --url how others reach the relay.")
	}
	err = c.operate(ctx, keys, http.MethodPost, "/operator/shares", "relay share", map[string]string{"token": token}, &struct{}{})
	if errors.Is(err, errNoRelay) {
		fmt.Fprintln(s.err, "No relay answers at", c.Relay+": the link works once one runs, and is not in its audit.")
	} else if err != nil {
		fmt.Fprintln(s.err, "The link is not in the relay's audit:", err)
	}
}
