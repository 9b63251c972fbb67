package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kardianos/service"

	"ahprelay/hostagent"
)

// serviceName is the service's name in the system's lists.
const serviceName = "ahp-host-agent"

// serviceFlags select the service.
type serviceFlags struct {
	System bool `help:"Use a machine service, which starts at boot and runs as --run-as. Default: a user service, which starts at login."`
}

// config describes the service to the system.
func (f *serviceFlags) config() *service.Config {
	return &service.Config{
		Name: serviceName, DisplayName: "AHP host-agent", Description: "Makes the AHP host of this machine reachable through a relay",
		Option: service.KeyValue{"UserService": !f.System, "SystemdScript": unit(f.System), "RunAtLoad": true, "KeepAlive": true, "OnFailure": "restart"},
	}
}

// unit returns the template of systemd's unit. Like packaging/systemd, it restarts the
// host-agent after 2 s, and has fewer wake-ups of the Go runtime.
func unit(system bool) string {
	after, by := "", "default.target" // the user's manager has no multi-user.target
	if system {
		after, by = "Wants=network-online.target\nAfter=network-online.target\n", "multi-user.target"
	}
	return `[Unit]
Description={{Description}}
` + after + `StartLimitIntervalSec=0

[Service]
ExecStart={{Path | cmdEscape}}{{range Arguments}} {{. | cmd}}{{end}}
{{if WorkingDirectory}}WorkingDirectory={{WorkingDirectory | cmdEscape}}
{{end}}{{if UserName}}User={{UserName}}
{{end}}Restart=always
RestartSec=2
TimerSlackNSec=1ms
TimeoutStopSec=20

[Install]
WantedBy=` + by + "\n"
}

func (f *serviceFlags) open(cfg *service.Config) (service.Service, error) {
	s, err := service.New(noProgram{}, cfg)
	if err != nil {
		return nil, fmt.Errorf("no supported service manager (systemd, launchd, Windows): %w", err)
	}
	return s, nil
}

// noProgram stands for the service where a command only controls it.
type noProgram struct{}

func (noProgram) Start(service.Service) error { return nil }
func (noProgram) Stop(service.Service) error  { return nil }

type installCmd struct {
	serviceFlags
	RunAs string   `help:"The machine service's user." placeholder:"USER"`
	Start bool     `help:"Start the service now." default:"true" negatable:""`
	Args  []string `arg:"" optional:"" passthrough:"" help:"Arguments for the service: up URL, or run --relay URL …. Default: up with the relay that this user has joined."`
}

// Run installs the service.
func (c *installCmd) Run(s *streams) error {
	arguments, err := c.arguments()
	if err != nil {
		return err
	}
	cfg := c.config()
	cfg.Arguments, cfg.UserName = arguments, c.RunAs
	if c.System && c.RunAs == "" {
		return errors.New("give the service's user with --run-as: a user that can reach the host, not root")
	}
	if cfg.WorkingDirectory, err = os.UserHomeDir(); err != nil || c.System {
		cfg.WorkingDirectory = ""
	}
	svc, err := c.open(cfg)
	if err != nil {
		return err
	}
	if err := c.place(svc); err != nil {
		return err
	}
	if c.Start {
		if err := svc.Start(); err != nil {
			return fmt.Errorf("installed, but does not start: %w", err)
		}
	}
	_, err = fmt.Fprintf(s.out, "Installed with %s. %s\n", svc.Platform(), logsAt(svc.Platform(), c.System))
	return err
}

// systemdPlatform is the service package's name of systemd. Its other ways for Linux
// ignore --run-as, or start nothing at login.
const systemdPlatform = "linux-systemd"

// place installs the service, or leaves nothing behind.
func (c *installCmd) place(svc service.Service) error {
	if runtime.GOOS == "linux" && svc.Platform() != systemdPlatform {
		return fmt.Errorf("install: systemd does not run on this machine (%s does); start the command yourself, with your service manager or as a container's command: host-agent %s",
			svc.Platform(), strings.Join(c.Args, " "))
	}
	unit, err := c.unitFile()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(unit); err == nil {
		return fmt.Errorf("install: %s exists; host-agent uninstall removes it", unit)
	}
	if err := c.checkSystemd(); err != nil {
		return err
	}
	if err := svc.Install(); err != nil {
		_ = os.Remove(unit) // the next installation would find it
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

// checkSystemd returns the error of the service manager for this user, which the
// service package hides.
func (c *installCmd) checkSystemd() error {
	if runtime.GOOS != "linux" {
		return nil
	}
	args, hint := []string{"daemon-reload"}, "run this command as root"
	if !c.System {
		args, hint = append(args, "--user"), "a user service needs the user's own login, not su or sudo; as root, use --system --run-as USER"
	}
	if said, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("install: systemctl: %w: %s; %s", err, strings.TrimSpace(string(said)), hint)
	}
	return nil
}

// unitFile returns the file of systemd's unit.
func (f *serviceFlags) unitFile() (string, error) {
	if f.System {
		return "/etc/systemd/system/" + serviceName + ".service", nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".config", "systemd", "user", serviceName+".service"), err
}

// arguments returns the service's command line.
func (c *installCmd) arguments() ([]string, error) {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return nil, errors.New("no relay joined yet: give the arguments, as in host-agent install up https://relay.example.com")
	}
	if args[0] != "up" && args[0] != "run" {
		return nil, fmt.Errorf("%q cannot run as a service; want up or run", args[0])
	}
	if args[0] == "up" { // a service cannot ask for approval
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

// logsAt returns a note for people on the place of the log.
func logsAt(platform string, system bool) string {
	switch {
	case platform == systemdPlatform && system:
		return "Its log: journalctl -u " + serviceName
	case platform == systemdPlatform:
		return "Its log: journalctl --user -u " + serviceName + ". To keep it running after logout: loginctl enable-linger"
	case runtime.GOOS == "darwin":
		return "Its log: " + filepath.Join("~", "Library", "Logs") + ", and Console"
	case runtime.GOOS == "windows":
		return "Its log: the event viewer, under Application"
	}
	return ""
}

type uninstallCmd struct{ serviceFlags }

// Run removes the service. The credential stays.
func (c *uninstallCmd) Run(s *streams) error {
	svc, err := c.open(c.config())
	if err != nil {
		return err
	}
	_ = svc.Stop() // it may not run
	if err := svc.Uninstall(); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	_, err = fmt.Fprintln(s.out, "Removed. The credential remains: relay revoke --host ends it.")
	return err
}

type statusCmd struct{ serviceFlags }

// Run reports whether the service runs, and fails if it does not.
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
		return errors.New("service is installed but not running")
	}
	_, err = fmt.Fprintln(s.out, "running")
	return err
}

// asService runs as a service if Windows started this process as one. Elsewhere it
// only calls run.
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

// A program is a service's body.
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
