package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"ahprelay/auth/device"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

type upCmd struct {
	URL               string   `arg:"" help:"Base URL of the relay." placeholder:"URL"`
	Upstream          string   `help:"Where the AHP host is, as for run. Default: what is found on this machine." placeholder:"URL"`
	UpstreamTokenFile string   `help:"File with the connection token that the host wants (?tkn=)." type:"path" placeholder:"FILE"`
	CredentialsFile   string   `help:"File for the credential. Default: one for this relay, in your state directory." type:"path" placeholder:"FILE"`
	Name              string   `help:"Name that the host would like; who approves decides." placeholder:"HOST"`
	NoQR              bool     `help:"Print no QR code." name:"no-qr"`
	Enroll            bool     `help:"Only join the relay and find the host, and print how to serve it." name:"only-join"`
	Command           []string `arg:"" optional:"" passthrough:"" help:"Command that is the host, behind --."`
	serveFlags
	plainFlag
}

// Run joins the relay, unless that was done before, and serves the host until ctx
// ends.
func (c *upCmd) Run(ctx context.Context, s *streams) error {
	file, err := c.credentialsFile()
	if err != nil {
		return err
	}
	serve := &runCmd{serveFlags: c.serveFlags, hostFlags: hostFlags{
		Relay: []string{c.URL}, CredentialsFile: file, Upstream: c.Upstream, UpstreamTokenFile: c.UpstreamTokenFile, Command: c.Command, plainFlag: c.plainFlag,
	}}
	if c.Upstream == "" && len(c.Command) == 0 {
		if serve.Upstream, serve.UpstreamTokenFile, err = c.find(ctx, s); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		if err := c.join(ctx, s, file); err != nil {
			return err
		}
	}
	if c.Enroll {
		line := fmt.Sprintf("host-agent run --relay %s --credentials-file %s --upstream %s", c.URL, file, serve.Upstream)
		if serve.UpstreamTokenFile != "" {
			line += " --upstream-token-file " + serve.UpstreamTokenFile
		}
		_, err := fmt.Fprintln(s.out, line)
		return err
	}
	fmt.Fprintf(s.err, "Serving %s through %s. Ctrl-C ends it; host-agent install has it start by itself.\n", hostagent.Upstream{URL: serve.Upstream, Command: c.Command}, c.URL)
	return serve.Run(ctx, s)
}

// credentialsFile is where the credential for this relay is.
func (c *upCmd) credentialsFile() (string, error) {
	if c.CredentialsFile != "" {
		return c.CredentialsFile, nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("%q: want the relay's URL, such as https://relay.example.com", c.URL)
	}
	dir, err := stateHome()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return filepath.Join(dir, plainName(u.Host)+".credential"), nil
}

// plainName is an address as part of the name of a file.
func plainName(address string) string {
	return strings.NewReplacer(":", "_", "[", "", "]", "").Replace(address)
}

// stateHome is the directory of this user's for host-agents.
func stateHome() (string, error) {
	return cli.StateHome("ahp-host-agent")
}

// join has somebody approve this machine.
func (c *upCmd) join(ctx context.Context, s *streams, file string) error {
	machine, _ := os.Hostname() // what is not known is not shown
	name := ""
	if who, err := user.Current(); err == nil {
		name = who.Username
	}
	tenant, host, expires, err := hostagent.Pair(ctx, hostagent.Pairing{
		Relay: c.URL, File: file, Machine: machine, User: name, Name: c.Name, Plain: c.RelayPlain,
		Show: func(code device.Code) { cli.ShowCode(s.err, code, c.NoQR) },
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "This is host %s of tenant %s now; %s is good until %s, and renewed before.\n", host, tenant, file, expires.Local().Format(time.DateOnly))
	return err
}

// find returns the AHP host of this machine, and the file with its connection token if it wants
// one. If there are several hosts, it asks.
func (c *upCmd) find(ctx context.Context, s *streams) (upstream, tokenFile string, err error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", "", err
	}
	found := hostagent.FindHosts(home)
	asked := term.IsTerminal(int(os.Stdin.Fd()))
	if !asked && slices.ContainsFunc(found, hostagent.Found.Locked) { // unattended, a lock file decides
		found = slices.DeleteFunc(found, func(f hostagent.Found) bool { return !f.Locked() })
	}
	var host hostagent.Found
	switch len(found) {
	case 0:
		return "", "", errors.New("no AHP host was found on this machine: start one, such as code agent host, or say where it is with --upstream")
	case 1:
		fmt.Fprintln(s.err, "Found", found[0].What)
		host = found[0]
	default:
		if host, err = choose(os.Stdin, s.err, asked, found); err != nil {
			return "", "", err
		}
	}
	tokenFile, err = c.tokenFile(ctx, host, func() (string, error) { return askToken(s.err, asked, host) })
	return host.Upstream, tokenFile, err
}

// tokenFile returns the file with the connection token that a host wants, "" if it wants none. A
// token that was found or is asked for is kept in a file of this user's for the host's address.
func (c *upCmd) tokenFile(ctx context.Context, host hostagent.Found, ask func() (string, error)) (string, error) {
	if c.UpstreamTokenFile != "" || host.Locked() {
		return c.UpstreamTokenFile, nil
	}
	token := host.Token
	if token == "" && !(hostagent.Upstream{URL: host.Upstream}).WantsToken(ctx) {
		return "", nil
	}
	dir, err := stateHome()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, plainName(strings.TrimPrefix(host.Upstream, "ws://"))+".token")
	if token == "" {
		kept := hostagent.Upstream{URL: host.Upstream, TokenFile: file}
		if kept.Check() == nil && !kept.WantsToken(ctx) {
			return file, nil
		}
		if token, err = ask(); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	_ = os.Remove(file) // the new file is this user's alone, whatever the old one was
	return file, os.WriteFile(file, []byte(token+"\n"), 0o600)
}

// askToken asks for the connection token of a host.
func askToken(out io.Writer, asked bool, host hostagent.Found) (string, error) {
	if !asked {
		return "", fmt.Errorf("%s wants a connection token: give --upstream-token-file", host.Upstream)
	}
	fmt.Fprintf(out, "%s wants its connection token. Paste the token, or the address that the host has printed (it is not shown): ", host.What)
	text, err := term.ReadPassword(int(os.Stdin.Fd()))
	fmt.Fprintln(out)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if u, err := url.Parse(token); err == nil && u.Query().Get("tkn") != "" {
		token = u.Query().Get("tkn")
	}
	if token == "" {
		return "", fmt.Errorf("%s wants a connection token", host.Upstream)
	}
	return token, nil
}

// choose asks which of several hosts is meant.
func choose(in io.Reader, out io.Writer, asked bool, found []hostagent.Found) (hostagent.Found, error) {
	fmt.Fprintln(out, "There are several hosts on this machine:")
	for i, f := range found {
		fmt.Fprintf(out, "  %d  %s (--upstream %s)\n", i+1, f.What, f.Upstream)
	}
	if !asked {
		return hostagent.Found{}, errors.New("say which with --upstream")
	}
	lines := bufio.NewScanner(in)
	for {
		fmt.Fprintf(out, "Which one? [1-%d] ", len(found))
		if !lines.Scan() {
			return hostagent.Found{}, errors.New("say which with --upstream")
		}
		if n, err := strconv.Atoi(strings.TrimSpace(lines.Text())); err == nil && n >= 1 && n <= len(found) {
			return found[n-1], nil
		}
	}
}
