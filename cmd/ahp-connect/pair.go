package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/connect"
	"ahprelay/internal/sealed"
)

type pairCmd struct {
	Host string `arg:"" help:"The host, or RELAY/HOST, or the link in the host's QR code, or a link to one session (host-agent share)." placeholder:"HOST"`
	Code string `arg:"" optional:"" help:"The code that the host shows. Default: typed, and not shown." placeholder:"CODE"`
	Name string `help:"This device's name at the host. Default: the machine's name." placeholder:"NAME"`
	relayFlags
}

// follow stores a link to a session of a sealed host, so that ahp-connect up opens the
// session.
func (c *pairCmd) follow(ctx context.Context, s *streams) error {
	link, err := sealed.ParseShareLink(c.Host)
	if err != nil {
		return err
	}
	if c.TokenFile != "" {
		c.Relay = cmp.Or(c.Relay, link.Relay)
		if err := connect.CheckURL(link.Relay, c.RelayPlain); err != nil {
			return err
		}
		if err := connect.Join(ctx, &link, c.TokenFile); err != nil {
			return err
		}
	}
	found, err := c.find(ctx, s, connect.RelayName(link.Relay), link.Host)
	if err != nil && c.TokenFile == "" {
		err = fmt.Errorf("%w. Without a sign-in at this relay, give --token-file FILE: the link's token is written to FILE", err)
	}
	if err != nil {
		return err
	}
	p, err := found.Follow(s.home, &link)
	if err != nil {
		return err
	}
	why := "by this link"
	if !p.Link {
		why = "with this machine's own keys"
	}
	_, err = fmt.Fprintf(s.err, "%s of %s opens %s. The relay carries it, and cannot read it. Start ahp-connect up, with the same flags, and open it at the host %s.\n", link.Session, p.Host, why, p.Host)
	return err
}

func (c *pairCmd) Run(ctx context.Context, s *streams) error {
	if err := s.home.Writable(); err != nil {
		return err
	}
	if sealed.IsShareLink(c.Host) {
		return c.follow(ctx, s)
	}
	cfg := connect.PairConfig{Name: c.Name, Pending: func(p *connect.Pairing) {
		fmt.Fprintf(s.err, "Compare these words with the host's screen, and confirm there.\n  %s\n", p.Title())
	}}
	if cfg.Name == "" {
		cfg.Name, _ = os.Hostname() // the host shows a device without a name as well
	}
	relay := ""
	link, isLink, err := connect.ReadLink(c.Host)
	switch {
	case err != nil:
		return err
	case isLink:
		relay, cfg.Host, cfg.Code, cfg.Expect = link.Relay, link.Host, link.Code, &link.Key
	default:
		relay, cfg.Host = connect.SplitHost(c.Host)
		if cfg.Code, err = c.code(ctx, s); err != nil {
			return err
		}
	}
	found, err := c.find(ctx, s, relay, cfg.Host)
	if err != nil {
		return err
	}
	p, err := found.Pair(ctx, s.home, cfg)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "Paired with %s: the relay carries this host's conversations, and cannot read them. From now on, this machine opens it sealed only.\n", p.Host)
	return err
}

// code returns the pairing code: the argument or, without one, a line from standard input.
func (c *pairCmd) code(ctx context.Context, s *streams) (sealed.Code, error) {
	text := c.Code
	if text == "" {
		fmt.Fprint(s.err, "The code that the host shows: ")
		if in, ok := s.in.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
			typed, err := cli.Secret(ctx, in)
			fmt.Fprintln(s.err)
			if err != nil {
				return sealed.Code{}, err
			}
			text = typed
		} else {
			line, err := cli.Typed(ctx, func() (string, error) { return bufio.NewReader(s.in).ReadString('\n') })
			if err != nil && line == "" {
				return sealed.Code{}, errors.New("no code: host-agent up --sealed, or host-agent devices --pair, shows one at the host")
			}
			text = line
		}
	}
	return sealed.ParseCode(strings.TrimSpace(text))
}

// find returns the relay of a host. If only one relay is known, find returns it whatever
// relay says, because a link may name that relay by a different address.
func (f *relayFlags) find(ctx context.Context, s *streams, relay, host string) (*connect.Relay, error) {
	relays, err := f.relays(s.home)
	if err != nil {
		return nil, err
	}
	if len(relays.All()) == 1 {
		return relays.All()[0], nil
	}
	return relays.Find(ctx, relay, host)
}

type unpairCmd struct {
	Host   string `arg:"" help:"The host, or RELAY/HOST." placeholder:"HOST"`
	Forget bool   `help:"Also forget that the host is sealed. This machine then opens it without end-to-end encryption; use this only on the owner's request."`
	relayFlags
}

func (c *unpairCmd) Run(ctx context.Context, s *streams) error {
	relay, host := connect.SplitHost(c.Host)
	found, err := c.find(ctx, s, relay, host)
	if err != nil {
		return err
	}
	if err := s.home.Unpair(found.URL, host, c.Forget); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "The keys for %s are removed here; pair again with a code from its screen. The host still knows this device: remove it there with host-agent devices --remove.\n", host)
	return err
}

type devicesCmd struct {
	Host   string `arg:"" help:"A sealed host, or RELAY/HOST." placeholder:"HOST"`
	Remove string `help:"Remove the device with this fingerprint, or a grant by its serial. Its connections end." placeholder:"ID"`
	relayFlags
}

func (c *devicesCmd) Run(ctx context.Context, s *streams) error {
	relay, host := connect.SplitHost(c.Host)
	found, err := c.find(ctx, s, relay, host)
	if err != nil {
		return err
	}
	p, err := s.home.Pairing(found.URL, host)
	if err != nil {
		return err
	}
	if p != nil {
		fmt.Fprintln(s.err, p.Title())
	}
	list, err := found.Devices(ctx, host, c.Remove)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, d := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Fingerprint, d.Words, d.Subject, d.Level.Level(), d.Seen.Local().Format(time.DateTime), d.Name)
	}
	return w.Flush()
}
