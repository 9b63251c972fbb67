package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/kardianos/service"

	"ahprelay/hostagent"
)

// serviceName is what the service is called where the system lists services.
const serviceName = "ahp-host-agent"

// serviceFlags say which service is meant.
type serviceFlags struct {
	System bool `help:"A service of the machine, which starts with it and runs as --run-as. Default: of this user, which starts with their session."`
}

// config returns how the system knows the service.
func (f *serviceFlags) config() *service.Config {
	return &service.Config{
		Name: serviceName, DisplayName: "AHP host-agent", Description: "Makes the AHP host of this machine reachable through a relay",
		Dependencies: unitDependencies(f.System), Option: service.KeyValue{"UserService": !f.System, "Restart": "always", "RunAtLoad": true, "KeepAlive": true, "OnFailure": "restart"},
	}
}

// unitDependencies are those for systemd, which has them as lines of its own.
func unitDependencies(system bool) []string {
	if runtime.GOOS != "linux" || !system {
		return nil
	}
	return []string{"Wants=network-online.target", "After=network-online.target"}
}

func (f *serviceFlags) open(cfg *service.Config) (service.Service, error) {
	s, err := service.New(noProgram{}, cfg)
	if err != nil {
		return nil, fmt.Errorf("this system has no services that are known here (systemd, launchd, Windows and others): %w", err)
	}
	return s, nil
}

// noProgram is what a command controls that is not the service itself.
type noProgram struct{}

func (noProgram) Start(service.Service) error { return nil }
func (noProgram) Stop(service.Service) error  { return nil }

type installCmd struct {
	serviceFlags
	RunAs string   `help:"User that a service of the machine runs as." placeholder:"USER"`
	Start bool     `help:"Start it now." default:"true" negatable:""`
	Args  []string `arg:"" optional:"" passthrough:"" help:"Arguments of up or run, as they are given there: up URL, or run --relay URL …. Default: up with the relay that this user has joined."`
}

// Run has the system start host-agent by itself.
func (c *installCmd) Run(s *streams) error {
	arguments, err := c.arguments()
	if err != nil {
		return err
	}
	cfg := c.config()
	cfg.Arguments, cfg.UserName = arguments, c.RunAs
	if c.System && c.RunAs == "" {
		return errors.New("say with --run-as which user the service runs as: one who may reach the host, and not root")
	}
	if cfg.WorkingDirectory, err = os.UserHomeDir(); err != nil || c.System {
		cfg.WorkingDirectory = ""
	}
	svc, err := c.open(cfg)
	if err != nil {
		return err
	}
	if err := svc.Install(); err != nil {
		return fmt.Errorf("install: %w; host-agent uninstall removes one that is there", err)
	}
	if c.Start {
		if err := svc.Start(); err != nil {
			return fmt.Errorf("it is installed, and does not start: %w", err)
		}
	}
	_, err = fmt.Fprintf(s.out, "Installed with %s. %s\n", svc.Platform(), logsAt(svc.Platform(), c.System))
	return err
}

// arguments are those that the service is started with.
func (c *installCmd) arguments() ([]string, error) {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return nil, errors.New("say what it is to run: host-agent install up https://relay.example.com, as you have run it before")
	}
	if args[0] != "up" && args[0] != "run" {
		return nil, fmt.Errorf("%q is not what a service runs: up or run", args[0])
	}
	if args[0] == "up" { // nobody is there to be asked
		up := upCmd{}
		for _, arg := range args[1:] {
			if up.URL == "" && len(arg) > 4 && arg[:4] == "http" {
				up.URL = arg
			}
		}
		file, err := up.credentialsFile()
		if err != nil {
			return nil, err
		}
		if _, err := hostagent.OpenCredentialFile(file); err != nil {
			return nil, fmt.Errorf("run host-agent up %s first, and have it approved: %w", up.URL, err)
		}
		args = append([]string{"up", "--no-qr", "--credentials-file", file}, args[1:]...)
	}
	return args, nil
}

// logsAt says where the log is, for people.
func logsAt(platform string, system bool) string {
	switch {
	case platform == "linux-systemd" && system:
		return "Its log: journalctl -u " + serviceName
	case platform == "linux-systemd":
		return "Its log: journalctl --user -u " + serviceName + ". To have it run while nobody is logged in: loginctl enable-linger"
	case runtime.GOOS == "darwin":
		return "Its log: " + filepath.Join("~", "Library", "Logs") + ", and Console"
	case runtime.GOOS == "windows":
		return "Its log: the event viewer, under Application"
	}
	return ""
}

type uninstallCmd struct{ serviceFlags }

// Run has the system forget the service. The credential stays.
func (c *uninstallCmd) Run(s *streams) error {
	svc, err := c.open(c.config())
	if err != nil {
		return err
	}
	_ = svc.Stop() // it may not run
	if err := svc.Uninstall(); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	_, err = fmt.Fprintln(s.out, "Removed. The credential is where it was: relay revoke --host ends it.")
	return err
}

type statusCmd struct{ serviceFlags }

// Run says whether the service runs, and fails if it does not.
func (c *statusCmd) Run(s *streams) error {
	svc, err := c.open(c.config())
	if err != nil {
		return err
	}
	status, err := svc.Status()
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if status != service.StatusRunning {
		return errors.New("installed, and not running")
	}
	_, err = fmt.Fprintln(s.out, "running")
	return err
}

// asService runs what Windows has started as a service; elsewhere it only runs it.
func asService(ctx context.Context, run func(context.Context) error) error {
	if runtime.GOOS != "windows" || service.Interactive() {
		return run(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &program{run: func() error { return run(ctx) }, cancel: cancel, ended: make(chan error, 1)}
	svc, err := service.New(p, (&serviceFlags{System: true}).config())
	if err != nil {
		return err
	}
	return svc.Run()
}

// A program is what a service runs.
type program struct {
	run    func() error
	cancel context.CancelFunc
	ended  chan error
}

func (p *program) Start(service.Service) error {
	go func() { p.ended <- p.run() }()
	return nil
}

func (p *program) Stop(service.Service) error {
	p.cancel()
	return <-p.ended
}
