package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/connect"
)

type hostsCmd struct{ relayFlags }

func (c *hostsCmd) Run(ctx context.Context, s *streams) error {
	relays, err := c.relays(s.home)
	if err != nil {
		return err
	}
	hosts, missing := relays.Hosts(ctx)
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, h := range hosts {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cli.Printable(h.Name), cli.Printable(h.State), h.Relay, cli.Printable(h.Reason))
	}
	return errors.Join(w.Flush(), missing)
}

type urlCmd struct {
	Host    string `arg:"" help:"The host, or RELAY/HOST." placeholder:"HOST"`
	Program string `help:"The client program that will use the address. Its local token is in the address." default:"url" placeholder:"NAME"`
}

func (c *urlCmd) Run(ctx context.Context, s *streams) error {
	if err := known(ctx, s.home, c.Host); err != nil {
		return err
	}
	_, host := connect.SplitHost(c.Host)
	token, err := s.home.Tokens().For(c.Program, host)
	if err != nil {
		return err
	}
	address, err := s.home.Address()
	if err != nil {
		return err
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return fmt.Errorf("ahp-connect up listens on the socket %s, which has no URL: connect there, to the path /ahp/%s", path, c.Host)
	}
	if idle, err := s.home.Idle(); err == nil && idle {
		fmt.Fprintln(s.err, "ahp-connect up does not run: start it with ahp-connect up, or ahp-connect install, before the program connects.")
	}
	_, err = fmt.Fprintf(s.out, "ws://%s/ahp/%s?tkn=%s\n", address, c.Host, token.Token)
	return err
}

// known returns an error for a HOST or RELAY/HOST that the relays do not have. Without a sign-in, or while a relay does not answer, it
// returns nil.
func known(ctx context.Context, home *connect.Home, name string) error {
	relays, err := home.Relays()
	if errors.Is(err, connect.ErrNotSignedIn) {
		return nil // ahp-connect up may run with --relay
	}
	if err != nil {
		return err
	}
	relay, host := connect.SplitHost(name)
	err = relays.CheckHost(ctx, relay, host)
	if _, refused := errors.AsType[*connect.Refusal](err); refused {
		return err
	}
	return nil
}

type tokenCmd struct {
	Name   string      `arg:"" optional:"" help:"The client program: a new token replaces its previous one. Without a name, the tokens are listed." placeholder:"NAME"`
	Host   []string    `help:"Hosts that the token opens, as patterns. Default: all hosts that you may open." name:"host" aliases:"hosts" placeholder:"HOST"`
	Level  auth.Access `help:"The token's level, at most your own: look, talk, approve or operate. Default: your own, at most operate." enum:"look,talk,approve,operate,read,write," default:""`
	Revoke bool        `help:"Revoke the program's token. Its connections end."`
}

func (c *tokenCmd) Run(s *streams) error {
	tokens := s.home.Tokens()
	switch {
	case c.Name == "" && c.Revoke:
		return errors.New("--revoke needs the name of the program: ahp-connect token lists them")
	case c.Revoke:
		return tokens.Revoke(c.Name)
	case c.Name != "":
		made, err := tokens.Make(c.Name, c.Host, c.Level)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(s.out, made.Token)
		return err
	}
	list, err := tokens.List()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, one := range list {
		level, hosts := one.Level.Level(), strings.Join(one.Hosts, " ")
		if one.Level == "" {
			level = "your own"
		}
		hosts = cmp.Or(hosts, "all hosts")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", one.Name, level, hosts, one.Made.Local().Format(time.DateTime))
	}
	return w.Flush()
}

type stdioCmd struct {
	Host  string      `arg:"" help:"The host, or RELAY/HOST." placeholder:"HOST"`
	Level auth.Access `help:"The highest level to use: look, talk, approve or operate. Default: your own, at most operate." enum:"look,talk,approve,operate,read,write," default:""`
	relayFlags
}

// Run joins standard input and output to a host.
func (c *stdioCmd) Run(ctx context.Context, s *streams) error {
	relays, err := c.relays(s.home)
	if err != nil {
		return err
	}
	found, host, err := relays.FindHost(ctx, c.Host)
	if err != nil {
		return err
	}
	in, end := unblock(s.in)
	closed := connect.ServeLocal(ctx, connect.NewLines(in, s.out, end), found, host, c.Level, s.log)
	if slices.Contains([]int{1000, 1001, 1005}, int(closed.Code)) {
		return nil
	}
	return fmt.Errorf("%d %s", closed.Code, closed.Reason)
}

// unblock returns a reader of r, and a function that ends a blocked Read.
func unblock(r io.Reader) (io.Reader, func()) {
	if f, ok := r.(*os.File); ok && f.SetReadDeadline(time.Time{}) == nil {
		return f, func() { _ = f.SetReadDeadline(time.Now()) }
	}
	pr, pw := io.Pipe()
	go func() { // ends with r, at the latest with the process
		_, err := io.Copy(pw, r)
		pw.CloseWithError(err)
	}()
	return pr, func() { _ = pr.Close() }
}
