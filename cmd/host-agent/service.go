package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"ahprelay/ahp"
	"ahprelay/cmd/internal/agents"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

type serviceFlags struct {
	System  bool   `help:"Use a machine service, which starts at boot and runs as --run-as. Default: a user service, which starts at login."`
	Service string `help:"Name of the service: for a second relay, install a second service." default:"ahp-host-agent" placeholder:"NAME"`
}

func (f *serviceFlags) AfterApply() error { return ahp.CheckName("--service", f.Service) }

func (f *serviceFlags) service() *cli.Service {
	return &cli.Service{Name: f.Service, Title: "AHP host-agent", Description: "Makes the AHP host of this machine reachable through a relay", System: f.System, Final: statusRefused}
}

type installCmd struct {
	serviceFlags
	RunAs string   `help:"The machine service's user." placeholder:"USER"`
	Start bool     `help:"Start the service now." default:"true" negatable:""`
	Args  []string `arg:"" optional:"" passthrough:"" help:"Arguments for the service: up URL, or run --relay URL …."`

	files []string // that the service reads, set by arguments
}

func (c *installCmd) Run(s *streams, parsed *kong.Context) error {
	if c.System && c.RunAs == "" {
		return errors.New("give the service's user with --run-as: a user that can reach the host, not root")
	}
	if !c.System && c.RunAs != "" {
		return errors.New("--run-as is for a machine service: add --system; a user's service runs as that user")
	}
	arguments, err := c.arguments(cli.OfAllCommands(parsed)...)
	if err != nil {
		return err
	}
	svc := c.service()
	svc.Args, svc.User, svc.Files = arguments, c.RunAs, c.files
	svc.Env = map[string]string{"PATH": os.Getenv("PATH")} // to find an agent, and for the agents' own commands
	if svc.Directory, err = cli.ServiceDirectory(arguments, c.System); err != nil {
		return err
	}
	said, err := svc.Install(c.Start)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(s.out, said)
	return err
}

// arguments returns the service's command line. common are flags of install itself that the service needs, too.
func (c *installCmd) arguments(common ...string) ([]string, error) {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return nil, errors.New("give the service's arguments, as in host-agent install up https://relay.example.com")
	}
	if args[0] != "up" && args[0] != "run" {
		return nil, fmt.Errorf("%q cannot run as a service; want up or run", args[0])
	}
	args = slices.Insert(slices.Clone(args), 1, common...)
	var a app
	parsed, err := a.program().Parse(args, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	if parsed == nil {
		return nil, fmt.Errorf("%q cannot run as a service; want the arguments of up or run", strings.Join(args, " "))
	}
	if err := a.checkUpstream(); err != nil {
		return nil, err
	}
	if command := slices.Concat(a.Up.Command, a.Run.Command); len(command) > 0 && command[0] != "--" {
		args = slices.Insert(args, len(args)-len(command), "--") // so that its arguments are no flags of the service
	}
	c.files = cli.FilesOf(parsed)
	if args[0] == "up" { // a service cannot ask for approval
		file, err := c.credentialsFile(&a.Up)
		if err != nil {
			return nil, err
		}
		if _, err := hostagent.OpenCredentialFile(file); err != nil {
			as := ""
			if c.System {
				as = " as the user " + c.RunAs
			}
			return nil, fmt.Errorf("run host-agent up %s first%s, and have it approved: %w", a.Up.URL, as, err)
		}
		c.files = append(c.files, file)
		args = append([]string{"up", "--no-qr", "--credentials-file", file}, args[1:]...) // a flag in args repeats the same file
	}
	return pinPaths(slices.Insert(slices.Clone(args), 1, cli.InEnvironment(parsed)...))
}

// checkUpstream returns an error for an --upstream that no service can serve. The service would report it in its log only, and end
// again and again.
func (a *app) checkUpstream() error {
	host := hostagent.Upstream{URL: cmp.Or(a.Up.Upstream, a.Run.Upstream), TokenFile: cmp.Or(a.Up.UpstreamTokenFile, a.Run.UpstreamTokenFile)}
	if host.URL == "" {
		return nil
	}
	return host.Check()
}

// credentialsFile returns the path of the service's credential file. A machine service has the state directory of its user.
func (c *installCmd) credentialsFile(up *upCmd) (string, error) {
	if !c.System || up.CredentialsFile != "" || runtime.GOOS == "windows" { // Windows has service users without a home
		return up.credentialsFile()
	}
	who, err := user.Lookup(c.RunAs)
	if err != nil {
		return "", fmt.Errorf("--run-as: %w in /etc/passwd; give --credentials-file, as host-agent up prints it", err)
	}
	return up.credentialsFileIn(filepath.Join(who.HomeDir, ".local", "state", stateName))
}

var pathFlags = []string{"--token-file", "--credentials-file", "--upstream-token-file", "--state-dir", "--control", "--ca-file", "--config"}

// pinPaths makes paths absolute, and replaces the names of agents and the command behind
// -- by paths: a service has neither the folder nor the PATH of a shell.
func pinPaths(args []string) (list []string, err error) {
	var command []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, command = args[:i], slices.Clone(args[i:])
	}
	list, err = cli.ChangeValues(args, func(flag, value string) (string, error) { return pin(flag, value, command != nil) })
	if err != nil {
		return nil, err
	}
	if len(command) > 1 {
		path, err := exec.LookPath(command[1])
		if err == nil || errors.Is(err, exec.ErrDot) {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, err
		}
		command[1] = path
	}
	return append(list, command...), nil
}

// pin returns the value of a flag with absolute paths, for a service. If commanded, the
// agent's program is the command behind --.
func pin(flag, value string, commanded bool) (string, error) {
	switch {
	case flag == "--agent" && !commanded:
		pinned, err := (&agents.Flags{Agent: kong.SplitEscaped(value, ',')}).Pinned()
		return kong.JoinEscaped(pinned, ','), err
	case flag == "--folder":
		folders := kong.SplitEscaped(value, ',')
		for i, folder := range folders {
			folders[i] = kong.ExpandPath(folder)
		}
		return kong.JoinEscaped(folders, ','), nil
	case slices.Contains(pathFlags, flag) && value != "off" && value != "":
		return kong.ExpandPath(value), nil
	}
	return value, nil
}

type uninstallCmd struct{ serviceFlags }

func (c *uninstallCmd) Run(s *streams) error {
	if err := c.service().Uninstall(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "Removed. The credential remains: on the relay's machine, relay revoke --data-dir DIR --host NAME ends it.")
	return err
}

type statusCmd struct{ serviceFlags }

// Run reports whether the service runs, and fails if it does not.
func (c *statusCmd) Run(s *streams) error {
	if err := c.service().Status(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "running")
	return err
}
