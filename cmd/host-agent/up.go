package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"ahprelay/agenthost/acp"
	"ahprelay/ahp"
	"ahprelay/auth/device"
	"ahprelay/cmd/internal/agents"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

type upCmd struct {
	URL               string   `arg:"" help:"The relay's base URL." placeholder:"URL"`
	Upstream          string   `help:"The AHP host's address, as for host-agent run. Default: the host found on this machine." placeholder:"URL"`
	UpstreamTokenFile string   `help:"File with the connection token required by the host (?tkn=)." type:"path" placeholder:"FILE"`
	CredentialsFile   string   `help:"Credential file. Default: one for this relay, in your state directory." type:"path" placeholder:"FILE"`
	Name              string   `help:"Suggested host name; it can be changed at the approval." placeholder:"HOST"`
	NoQR              bool     `help:"Print no QR code." name:"no-qr"`
	Enroll            bool     `help:"Join the relay and find the host, then print the command that serves it." name:"only-join"`
	Command           []string `arg:"" optional:"" passthrough:"partial" help:"Command of a coding agent or of a host, after --. host-agent asks the command which protocol it speaks; --agent gives an agent a name."`
	agents.Flags
	serveFlags
	plainFlag
}

// Run joins the relay if there is no credential file, and serves the host until ctx ends.
func (c *upCmd) Run(ctx context.Context, s *streams) error {
	file, err := c.credentialsFile()
	if err != nil {
		return err
	}
	serve := &runCmd{Flags: c.Flags, serveFlags: c.serveFlags, hostFlags: hostFlags{
		Relay: []string{c.URL}, CredentialsFile: file, Upstream: c.Upstream, UpstreamTokenFile: c.UpstreamTokenFile, Command: c.Command, plainFlag: c.plainFlag,
	}}
	if c.Upstream == "" && len(c.Command) == 0 && len(c.Agent) == 0 {
		if serve.Upstream, serve.UpstreamTokenFile, err = c.find(ctx, s); err != nil {
			return err
		}
	}
	if err := c.recognize(ctx, s); err != nil {
		return err
	}
	serve.Agent = c.Agent // perhaps chosen by find or recognize
	if err := c.check(serve, s); err != nil {
		return err
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		if err := c.join(ctx, s, file); err != nil {
			return err
		}
	}
	if c.Enroll {
		line, err := serve.runLine(*s.logs)
		if err == nil {
			_, err = fmt.Fprintln(s.out, line)
		}
		return err
	}
	what := cmp.Or(strings.Join(serve.Agent, ", "), hostagent.Upstream{URL: serve.Upstream, Command: c.Command}.String())
	fmt.Fprintf(s.err, "Serving %s through %s. Ctrl-C stops it; host-agent install up %s, with the same flags, starts it automatically.\n", what, c.URL, c.URL)
	return serve.Run(ctx, s)
}

// check finds faults that would otherwise appear after a person has approved.
func (c *upCmd) check(serve *runCmd, s *streams) error {
	if err := ahp.CheckName("--name", c.Name); c.Name != "" && err != nil {
		return err
	}
	if serve.Upstream != "" {
		if err := (hostagent.Upstream{URL: serve.Upstream, TokenFile: serve.UpstreamTokenFile}).Check(); err != nil {
			return err
		}
	}
	if len(c.Agent) > 0 {
		if err := c.Check(c.Command); err != nil {
			return err
		}
	}
	_, err := serve.stateDir(s)
	return err
}

// runLine returns a command line for a shell that serves the same host with the same flags, and the flags of all commands.
func (serve *runCmd) runLine(common cli.Common) (string, error) {
	common.Config = "" // the values of its flags are in serve
	shown := struct {
		cli.Common
		runCmd
	}{common, *serve}
	parser, err := kong.New(&shown, programOptions...)
	if err != nil {
		return "", err
	}
	line := []string{"host-agent", "run"}
	for _, flag := range parser.Model.Flags {
		value := flag.Target.Interface()
		if err := flag.Reset(); err != nil {
			return "", err
		}
		normal := flag.Target.Interface()
		switch values := reflect.ValueOf(value); {
		case reflect.DeepEqual(value, normal):
		case value == true:
			line = append(line, "--"+flag.Name)
		case value == false:
			line = append(line, "--no-"+flag.Name)
		case values.Kind() == reflect.Slice:
			for i := range values.Len() {
				item := fmt.Sprint(values.Index(i))
				if flag.Tag.Sep != -1 { // -1: the flag takes no list
					item = kong.JoinEscaped([]string{item}, flag.Tag.Sep)
				}
				line = append(line, "--"+flag.Name, cli.Quoted(item))
			}
		default:
			line = append(line, "--"+flag.Name, cli.Quoted(fmt.Sprint(value)))
		}
	}
	if command := agents.Behind(serve.Command); len(command) > 0 {
		line = append(line, "--")
		for _, word := range command {
			line = append(line, cli.Quoted(word))
		}
	}
	return strings.Join(line, " "), nil
}

// recognize asks a command without --agent whether it is a coding agent. Any other command
// counts as a host.
func (c *upCmd) recognize(ctx context.Context, s *streams) error {
	command := agents.Behind(c.Command)
	if len(command) == 0 || len(c.Agent) > 0 {
		return nil
	}
	program, err := acp.Speaks(ctx, command, s.err)
	if errors.Is(err, acp.ErrOther) {
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(s.err, "%s is a coding agent: --agent %s\n", program.Title, program.Name)
	c.Agent = []string{program.Name}
	return nil
}

// credentialsFile returns the credential file's path for this relay. It creates the default
// directory.
func (c *upCmd) credentialsFile() (string, error) {
	if c.CredentialsFile != "" {
		return c.CredentialsFile, nil
	}
	dir, err := stateHome()
	if err != nil {
		return "", err
	}
	file, err := c.credentialsFileIn(dir)
	if err != nil {
		return "", err
	}
	return file, os.MkdirAll(dir, 0o700)
}

// credentialsFileIn returns the default path in a state directory.
func (c *upCmd) credentialsFileIn(dir string) (string, error) {
	base, err := device.BaseURL(c.URL)
	if err != nil {
		return "", err
	}
	_, host, _ := strings.Cut(base, "://")
	return filepath.Join(dir, plainName(host)+".credential"), nil
}

// plainName makes an address usable in a file name.
func plainName(address string) string {
	return strings.NewReplacer(":", "_", "/", "_", "[", "", "]", "").Replace(address)
}

const stateName = "ahp-host-agent" // of the state directory

func stateHome() (string, error) {
	return cli.StateHome(stateName)
}

// join asks for approval of this machine, and writes its credential into file.
func (c *upCmd) join(ctx context.Context, s *streams, file string) error {
	machine, _ := os.Hostname() // an unknown name is not shown
	name := ""
	if who, err := user.Current(); err == nil {
		name = who.Username
	}
	tenant, host, expires, err := hostagent.Pair(ctx, hostagent.Pairing{
		Relay: c.URL, File: file, Machine: machine, User: name, Name: c.Name, Plain: c.RelayPlain,
		Show: func(code device.Code) { cli.ShowCode(s.err, code, "Add a host", c.NoQR) },
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "This machine is now host %s of tenant %s; %s is valid until %s and renewed before.\n", host, tenant, file, expires.Local().Format(time.DateOnly))
	return err
}

// find returns this machine's AHP host, and the file with its connection token if it
// requires one. If there are several hosts, it asks. Without a host, it chooses a coding
// agent in the same way.
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
		return "", "", c.findAgent(ctx, s, asked, installed())
	case 1:
		fmt.Fprintln(s.err, "Found", found[0].What)
		host = found[0]
	default:
		if host, err = choose(ctx, os.Stdin, s.err, asked, found); err != nil {
			return "", "", err
		}
	}
	tokenFile, err = c.tokenFile(ctx, host, func() (string, error) { return askToken(ctx, s.err, asked, host) })
	return host.Upstream, tokenFile, err
}

// findAgent selects a coding agent of this machine. Of several, a person chooses one;
// unattended, that is an error.
func (c *upCmd) findAgent(ctx context.Context, s *streams, asked bool, found []acp.Program) error {
	i := 0
	switch {
	case len(found) == 0:
		return errors.New("no AHP host and no coding agent found on this machine: start a host, such as code agent host; give its address with --upstream; or install an agent (host-agent agents)")
	case len(found) > 1:
		fmt.Fprintln(s.err, "There are several coding agents on this machine:")
		for n, program := range found {
			fmt.Fprintf(s.err, "  %d  %s (--agent %s)\n", n+1, program.Title, program.Name)
		}
		if !asked {
			return errors.New("several coding agents on this machine: choose with --agent")
		}
		var err error
		if i, err = number(ctx, os.Stdin, s.err, len(found), "--agent"); err != nil {
			return err
		}
	default:
		fmt.Fprintln(s.err, "Found", found[0].Title)
	}
	c.Agent = []string{found[i].Name}
	return nil
}

// tokenFile returns the file with the host's connection token, "" if the host requires
// none. It keeps a token that was found or entered in a file of this user, named after
// the host's address.
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
	_ = os.Remove(file) // the new file is readable for this user alone, whatever its mode was
	return file, os.WriteFile(file, []byte(token+"\n"), 0o600)
}

func askToken(ctx context.Context, out io.Writer, asked bool, host hostagent.Found) (string, error) {
	if !asked {
		return "", fmt.Errorf("%s requires a connection token: give --upstream-token-file", host.Upstream)
	}
	fmt.Fprintf(out, "%s requires its connection token. Paste the token, or the address printed by the host (it is not shown): ", host.What)
	text, err := cli.Secret(ctx, os.Stdin)
	fmt.Fprintln(out)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(text)
	if u, err := url.Parse(token); err == nil && u.Query().Get("tkn") != "" {
		token = u.Query().Get("tkn")
	}
	if token == "" {
		return "", fmt.Errorf("%s requires a connection token", host.Upstream)
	}
	return token, nil
}

// choose asks which of several hosts to serve. Unattended, that is an error.
func choose(ctx context.Context, in io.Reader, out io.Writer, asked bool, found []hostagent.Found) (hostagent.Found, error) {
	fmt.Fprintln(out, "There are several hosts on this machine:")
	for i, f := range found {
		fmt.Fprintf(out, "  %d  %s (--upstream %s)\n", i+1, f.What, f.Upstream)
	}
	if !asked {
		return hostagent.Found{}, errors.New("several hosts on this machine: choose one with --upstream")
	}
	i, err := number(ctx, in, out, len(found), "--upstream")
	if err != nil {
		return hostagent.Found{}, err
	}
	return found[i], nil
}

// number asks for one of several items, and returns its index.
func number(ctx context.Context, in io.Reader, out io.Writer, items int, flag string) (int, error) {
	lines := bufio.NewScanner(in)
	for {
		fmt.Fprintf(out, "Which one? [1-%d] ", items)
		more, err := cli.Typed(ctx, func() (bool, error) { return lines.Scan(), nil })
		if err != nil {
			return 0, err
		}
		if !more {
			return 0, errors.New("nothing chosen: give " + flag)
		}
		if n, err := strconv.Atoi(strings.TrimSpace(lines.Text())); err == nil && n >= 1 && n <= items {
			return n - 1, nil
		}
	}
}
