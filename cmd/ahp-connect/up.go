package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/connect"
	"ahprelay/internal/memory"
)

// relayFlags select a relay without a sign-in, for scripts.
type relayFlags struct {
	Relay      string `help:"Use this relay, with --token-file, instead of the sign-ins: for scripts." placeholder:"URL"`
	TokenFile  string `help:"File with a client token for --relay (relay token client). The file may be replaced at any time." type:"path" placeholder:"FILE"`
	RelayPlain bool   `help:"Allow http:// to other machines, in private networks only."`
}

func (f *relayFlags) relays(home *connect.Home) (*connect.Relays, error) {
	switch {
	case f.Relay == "" && f.TokenFile == "":
		return home.Relays()
	case f.Relay == "" || f.TokenFile == "":
		return nil, errors.New("--relay and --token-file belong together: give both, or neither to use the sign-ins")
	}
	if err := connect.CheckURL(f.Relay, f.RelayPlain); err != nil {
		return nil, err
	}
	return connect.NewRelays(connect.NewRelay(f.Relay, connect.FileTokens(f.TokenFile))).Seal(home), nil
}

type upCmd struct {
	relayFlags
	Listen         string   `help:"Loopback address for local clients, or unix:/path." default:"${listen}" placeholder:"HOST:PORT"`
	LocalTokenFile string   `help:"Write a new local token for all hosts to this file, and accept no other local token: for scripts." type:"path" placeholder:"FILE"`
	AllowOrigin    []string `help:"Web origins that may connect, with a local token: https://vscode.dev. Default: only editors on this machine." placeholder:"ORIGIN"`
}

func (c *upCmd) checked(home *connect.Home) (*connect.Relays, error) {
	if path, ok := strings.CutPrefix(c.Listen, "unix:"); ok { // other commands have other working directories
		c.Listen = "unix:" + kong.ExpandPath(path)
	}
	if err := errors.Join(connect.CheckOrigins(c.AllowOrigin), connect.CheckListen(c.Listen)); err != nil {
		return nil, err
	}
	relays, err := c.relays(home)
	if err == nil && c.TokenFile != "" {
		_, err = connect.FileTokens(c.TokenFile).Read()
	}
	return relays, err
}

// Run serves local clients until ctx ends.
func (c *upCmd) Run(ctx context.Context, s *streams) error {
	relays, err := c.checked(s.home)
	if err != nil {
		return err
	}
	tokens := s.home.Tokens()
	if c.LocalTokenFile != "" {
		tokens = connect.NewTokens("")
	} else {
		release, err := s.home.Lock()
		if err != nil {
			return err
		}
		defer release()
	}
	l, err := c.listen(tokens)
	if err != nil {
		return err
	}
	defer l.Close()
	if c.LocalTokenFile != "" {
		token, err := tokens.Make(filepath.Base(c.LocalTokenFile), nil, "")
		if err != nil {
			return err
		}
		if err := atomicfile.Replace(c.LocalTokenFile, []byte(token.Token+"\n"), 0o600); err != nil {
			return err
		}
	} else if err := s.home.NoteAddress(addressOf(l)); err != nil {
		return err
	}
	defer memory.Start()()
	s.log.Info("serving local clients", "listen", addressOf(l))
	endpoint := connect.NewEndpoint(connect.Config{Relays: relays, Tokens: tokens, Origins: c.AllowOrigin, Log: s.log})
	return service().Run(ctx, func(ctx context.Context) error { return endpoint.Serve(ctx, l) })
}

// listen opens the address. If a different program has it, that program may have
// received local tokens, so all of them are renewed.
func (c *upCmd) listen(tokens *connect.Tokens) (net.Listener, error) {
	l, err := connect.Listen(c.Listen)
	if taken := (*connect.PortTaken)(nil); !errors.As(err, &taken) {
		return l, err
	}
	n, renewErr := tokens.RenewAll()
	if renewErr != nil {
		return nil, errors.Join(err, fmt.Errorf("local tokens not renewed: %w", renewErr))
	}
	if n > 0 {
		err = fmt.Errorf("%w. That program may have seen local tokens, so all %d are renewed: give your programs the new ones (ahp-connect url, ahp-connect vscode)", err, n)
	}
	return nil, err
}

// addressOf returns a listener's address in the form of --listen.
func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}

func service() *cli.Service {
	return &cli.Service{Name: "ahp-connect", Title: "ahp-connect", Description: "Opens the hosts of AHP relays to the programs on this machine"}
}

type installCmd struct {
	Start bool     `help:"Start the service now." default:"true" negatable:""`
	Args  []string `arg:"" optional:"" passthrough:"" help:"Flags for ahp-connect up."`
}

// startTime is how long install waits for the service that it has started.
const startTime = 10 * time.Second

func (c *installCmd) Run(ctx context.Context, s *streams, parsed *kong.Context) error {
	svc := service()
	args, up, err := c.arguments(s.home, cli.OfAllCommands(parsed)...)
	if err != nil {
		return err
	}
	if _, err := up.checked(s.home); err != nil {
		return err
	}
	svc.Args = args
	if svc.Directory, err = cli.ServiceDirectory(args, false); err != nil {
		return err
	}
	said, err := svc.Install(c.Start)
	if err != nil {
		return err
	}
	if c.Start && up.LocalTokenFile == "" { // with the file, up does not use the home
		ctx, cancel := context.WithTimeout(ctx, startTime)
		defer cancel()
		if s.home.AwaitUp(ctx) != nil {
			said += ". It does not serve the console yet: see ahp-connect status"
		}
	}
	_, err = fmt.Fprintln(s.out, said)
	return err
}

// arguments returns the service's command line, and ahp-connect up as it understands this. common are flags of install
// itself that the service needs, too.
func (c *installCmd) arguments(home *connect.Home, common ...string) (list []string, up *upCmd, err error) {
	list = slices.Concat([]string{"up"}, common, []string{"--state-dir", home.Dir})
	if home.Keys == nil {
		list = append(list, "--key-file")
	}
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	list = append(list, args...)
	var a app
	parsed, err := a.program().Parse(list, io.Discard, io.Discard)
	if parsed == nil && err == nil {
		err = fmt.Errorf("%q: want flags of ahp-connect up", strings.Join(args, " "))
	}
	if err != nil {
		return nil, nil, err
	}
	list, err = cli.ChangeValues(slices.Insert(list, 1, cli.InEnvironment(parsed)...), pin)
	return list, &a.Up, err
}

var pathFlags = []string{"--token-file", "--local-token-file", "--state-dir", "--ca-file", "--config"}

// pin returns a flag's value with an absolute path, because a service has a different working
// directory.
func pin(flag, value string) (string, error) {
	if socket, ok := strings.CutPrefix(value, "unix:"); ok && flag == "--listen" {
		return "unix:" + kong.ExpandPath(socket), nil
	}
	if slices.Contains(pathFlags, flag) {
		return kong.ExpandPath(value), nil
	}
	return value, nil
}

type uninstallCmd struct{}

func (*uninstallCmd) Run(s *streams) error {
	if err := service().Uninstall(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "Removed. Sign-ins and local tokens remain: ahp-connect logout ends a sign-in.")
	return err
}

type statusCmd struct{}

// Run reports whether the service runs, and fails if it does not.
func (*statusCmd) Run(s *streams) error {
	if err := service().Status(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "running")
	return err
}
