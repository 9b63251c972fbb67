package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/kardianos/service"
)

// A Service describes a program as a service of the system: systemd, launchd or
// Windows services.
type Service struct {
	Name        string // in the system's lists
	Title       string // for people
	Description string
	System      bool // a machine service; else a service of the user's session

	Args      []string // the program's arguments
	User      string   // of a machine service
	Files     []string // files that User must be able to read
	Directory string   // working directory; "": the system's default
	Final     int      // exit status after which systemd does not start the program again; 0: none

	Env map[string]string // additions to the service's environment
}

// InEnvironment returns the flags that the environment sets and the command line does not. A service does
// not get these variables. Paths may be relative: see [ChangeValues].
func InEnvironment(parsed *kong.Context) (flags []string) {
	for _, flag := range parsed.Flags() {
		if slices.ContainsFunc(parsed.Path, func(p *kong.Path) bool { return p.Flag == flag && !p.Resolved }) {
			continue
		}
		for _, name := range flag.Envs {
			if value, set := os.LookupEnv(name); set {
				flags = append(flags, "--"+flag.Name+"="+value)
			}
		}
	}
	return flags
}

// OfAllCommands returns the flags of all commands, such as --ca-file, that the command line sets.
func OfAllCommands(parsed *kong.Context) (flags []string) {
	for _, p := range parsed.Path {
		if p.Flag != nil && !p.Resolved && slices.Contains(parsed.Model.Flags, p.Flag) {
			flags = append(flags, fmt.Sprintf("--%s=%v", p.Flag.Name, p.Flag.Target.Interface()))
		}
	}
	return flags
}

// FilesOf returns the paths of the files that the flags name, from the command line, the environment and the --config file.
func FilesOf(parsed *kong.Context) (files []string) {
	for _, flag := range parsed.Flags() {
		if flag.Tag.Type == "path" && flag.Target.Kind() == reflect.String && flag.Target.String() != "" {
			files = append(files, flag.Target.String())
		}
	}
	return files
}

// ChangeValues returns arguments in which change has replaced each flag's value. It also calls change
// for arguments that are no flag's value, with the argument before in place of the flag.
func ChangeValues(args []string, change func(flag, value string) (string, error)) (list []string, err error) {
	before := ""
	for _, arg := range args {
		flag, value, inline := strings.Cut(arg, "=")
		if !inline || !strings.HasPrefix(arg, "--") {
			flag, value = before, arg
		}
		changed, err := change(flag, value)
		if err != nil {
			return nil, err
		}
		list = append(list, strings.TrimSuffix(arg, value)+changed)
		before = arg
	}
	return list, nil
}

// ServiceDirectory returns the working directory of a service with these arguments. With a --config file, it is the present
// directory, because relative paths in the file count from there; otherwise a user's home directory, or for a machine service none.
func ServiceDirectory(args []string, system bool) (string, error) {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	switch {
	case slices.ContainsFunc(args, func(arg string) bool { return arg == "--config" || strings.HasPrefix(arg, "--config=") }):
		return os.Getwd()
	case system:
		return "", nil
	}
	return os.UserHomeDir()
}

// networkVariables are the settings of proxies and of trusted authorities.
var networkVariables = []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// passes reports whether the service gets a variable of this process: for its network, for traces, or of its user.
func (s *Service) passes(name string) bool {
	return slices.Contains(networkVariables, name) || strings.HasPrefix(name, "OTEL_") || name == "XDG_STATE_HOME" && !s.System
}

// withVariables adds variables of this process to the service's environment. It returns a note for people on those that contain
// a password, which every reader of the service's settings would see.
func (s *Service) withVariables() (note string) {
	s.Env = maps.Clone(s.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	for _, pair := range slices.Sorted(slices.Values(os.Environ())) {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case value == "" || !s.passes(name):
		case strings.Contains(value, "@") && (strings.HasSuffix(strings.ToUpper(name), "_PROXY") || strings.HasSuffix(name, "_ENDPOINT")):
			note += " The service does not get " + name + ", because it contains a password."
		case strings.HasSuffix(name, "_HEADERS"):
			note += " The service does not get " + name + ", because it may contain a password."
		case name == "SSL_CERT_FILE", strings.HasSuffix(name, "_CERTIFICATE"), strings.HasSuffix(name, "_CLIENT_KEY"):
			s.Env[name] = kong.ExpandPath(value)
		case name == "SSL_CERT_DIR":
			s.Env[name] = absolute(value)
		default:
			s.Env[name] = value
		}
	}
	return note
}

// absolute returns a list of paths that do not depend on the working directory.
func absolute(paths string) string {
	list := filepath.SplitList(paths)
	for i, path := range list {
		list[i] = kong.ExpandPath(path)
	}
	return strings.Join(list, string(filepath.ListSeparator))
}

// noProgram takes the program's place in a command that only controls the service.
type noProgram struct{}

func (noProgram) Start(service.Service) error { return nil }
func (noProgram) Stop(service.Service) error  { return nil }

// wordInUnit and bareInUnit escape text for systemd's unit: an argument, which the service package quotes, and the
// program or the value of a variable, which it does not quote.
var (
	wordInUnit = strings.NewReplacer(`%`, `%%`, `$`, `$$`, `\`, `\\`, "\n", `\n`)
	bareInUnit = strings.NewReplacer(`%`, `%%`, `\`, `\\`, "\n", `\n`, "\t", `\t`, ` `, `\x20`, `"`, `\x22`, `'`, `\x27`)
)

func (s *Service) open(program service.Interface) (service.Service, error) {
	args, env, directory := slices.Clone(s.Args), maps.Clone(s.Env), s.Directory
	path, err := programPath()
	if err != nil {
		return nil, err
	}
	if runtime.GOOS == "linux" {
		for i, arg := range args {
			args[i] = wordInUnit.Replace(arg)
		}
		for name, value := range env {
			env[name] = bareInUnit.Replace(value)
		}
		path, directory = bareInUnit.Replace(path), strings.ReplaceAll(directory, "%", "%%")
		if s.System && directory != "" {
			directory = "-" + directory // the service's user may have no access there, and absolute paths need none
		}
	}
	svc, err := service.New(program, &service.Config{
		Name: s.Name, DisplayName: s.Title, Description: s.Description, Executable: path, Arguments: args, UserName: s.User, WorkingDirectory: directory, EnvVars: env,
		Option: service.KeyValue{"UserService": !s.System, "SystemdScript": s.unit(), "RunAtLoad": true, "KeepAlive": true, "OnFailure": "restart", "LogDirectory": s.logs()},
	})
	if err != nil {
		return nil, fmt.Errorf("no supported service manager (systemd, launchd, Windows): %w", err)
	}
	return svc, nil
}

// unit returns the template of systemd's unit. Like packaging/systemd, it restarts the
// program after 2 s, and has fewer wake-ups of the Go runtime. With the type exec, a start fails if systemd
// cannot run the program, as for an unknown user.
func (s *Service) unit() string {
	after, by := "", "default.target" // the user's manager has no multi-user.target
	if s.System {
		after, by = "Wants=network-online.target\nAfter=network-online.target\n", "multi-user.target"
	}
	final := ""
	if s.Final != 0 {
		final = fmt.Sprintf("RestartPreventExitStatus=%d\n", s.Final)
	}
	return `[Unit]
Description={{Description}}
` + after + `StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={{Path}}{{range Arguments}} {{. | cmd}}{{end}}
{{if WorkingDirectory}}WorkingDirectory={{WorkingDirectory}}
{{end}}{{if UserName}}User={{UserName}}
{{end}}{{range EnvVars}}{{.}}
{{end}}Restart=always
` + final + `RestartSec=2
TimerSlackNSec=1ms
TimeoutStopSec=20

[Install]
WantedBy=` + by + "\n"
}

// Install installs the service, and starts it unless start is false. It returns a
// sentence for people.
func (s *Service) Install(start bool) (said string, err error) {
	note := s.withVariables()
	svc, err := s.open(noProgram{})
	if err != nil {
		return "", err
	}
	if err := s.place(svc); err != nil {
		return "", err
	}
	if start {
		if err := svc.Start(); err != nil {
			return "", fmt.Errorf("installed, but does not start: %w. %s", err, s.logsAt(svc.Platform()))
		}
	}
	return fmt.Sprintf("Installed with %s.%s %s", svc.Platform(), note, s.logsAt(svc.Platform())), nil
}

// systemdPlatform is the service package's name of systemd. The package's other platforms
// on Linux ignore --run-as, or start nothing at login.
const systemdPlatform = "linux-systemd"

// manageable returns an error on a Linux machine without systemd.
func manageable(svc service.Service) error {
	if runtime.GOOS != "linux" || svc.Platform() == systemdPlatform {
		return nil
	}
	return fmt.Errorf("systemd does not run on this machine (%s does)", svc.Platform())
}

// place installs the service, or leaves nothing behind.
func (s *Service) place(svc service.Service) error {
	if err := manageable(svc); err != nil {
		line := filepath.Base(os.Args[0])
		for _, arg := range s.Args {
			line += " " + Quoted(arg)
		}
		return fmt.Errorf("install: %w; start the command yourself, with your service manager or as a container's command: %s", err, line)
	}
	unit, err := s.unitFile()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(unit); err == nil {
		return fmt.Errorf("install: %s exists; the command uninstall removes it", unit)
	}
	program, err := programPath()
	if err == nil {
		err = errors.Join(checkProgram(program), s.checkSystemd(), s.checkUser(program))
	}
	if err != nil {
		return err
	}
	if err := svc.Install(); err != nil {
		_ = os.Remove(unit) // the next installation would find it
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

// programPath returns this program's path as it was called. A package manager's link stays when the version behind it goes.
func programPath() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	called, err := exec.LookPath(os.Args[0])
	if err == nil {
		called, err = filepath.Abs(called)
	}
	if err != nil {
		return path, nil
	}
	this, errThis := os.Stat(path)
	other, errOther := os.Stat(called)
	if errors.Join(errThis, errOther) != nil || !os.SameFile(this, other) {
		return path, nil
	}
	return called, nil
}

// checkProgram returns an error for a program that systemd does not start, because of its path.
func checkProgram(path string) error {
	if runtime.GOOS == "linux" && strings.ContainsAny(path, `'"\`) {
		return fmt.Errorf("install: systemd starts no program with a quotation mark or backslash in its path: move %s", path)
	}
	return nil
}

// checkUser returns an error if a machine service's user cannot start the program, or cannot read its files. systemd and launchd
// report this in a log only.
func (s *Service) checkUser(program string) error {
	if !s.System || s.User == "" {
		return nil
	}
	if refused(s.User, "-x", program) {
		return fmt.Errorf("install: the user %s cannot start %s: move it to a directory that all users can enter, such as /usr/local/bin, and install from there", s.User, program)
	}
	for _, file := range s.Files {
		if refused(s.User, "-r", file) {
			return fmt.Errorf("install: the user %s cannot read %s: give the file and its directory to that user, or name a different file", s.User, file)
		}
	}
	if runtime.GOOS == "darwin" && s.Directory != "" && refused(s.User, "-x", s.Directory) {
		return fmt.Errorf("install: the user %s cannot enter %s, from which relative paths in the --config file count: install from a directory that all users can enter", s.User, s.Directory)
	}
	return nil
}

// checkSystemd returns the error of the service manager for this user, which the
// service package hides.
func (s *Service) checkSystemd() error {
	if runtime.GOOS != "linux" {
		return nil
	}
	args, hint := []string{"daemon-reload"}, "run this command as root"
	if !s.System {
		args, hint = append(args, "--user"), "a user service needs the user's own login, not su or sudo; as root, use --system --run-as USER"
	}
	if said, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("install: systemctl: %w: %s; %s", err, strings.TrimSpace(string(said)), hint)
	}
	return nil
}

func (s *Service) unitFile() (string, error) {
	if s.System {
		return "/etc/systemd/system/" + s.Name + ".service", nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".config", "systemd", "user", s.Name+".service"), err
}

// logs returns the directory for launchd's log of the service, "" for the service package's default, /var/log. launchd opens the log as
// the service's user, and does not start the program if that user may not write there.
func (s *Service) logs() string {
	home, err := os.UserHomeDir()
	if s.System {
		var who *user.User
		if who, err = user.Lookup(s.User); err == nil {
			home = who.HomeDir
		}
	}
	if err != nil {
		return ""
	}
	return filepath.Join(home, "Library", "Logs")
}

// logsAt returns a note for people on the place of the log.
func (s *Service) logsAt(platform string) string {
	switch {
	case platform == systemdPlatform && s.System:
		return "Its log: journalctl -u " + s.Name
	case platform == systemdPlatform:
		return "Its log: journalctl --user -u " + s.Name + ". To keep it running after logout: loginctl enable-linger"
	case runtime.GOOS == "darwin":
		return "Its log: " + filepath.Join(s.logs(), s.Name+".err.log")
	case runtime.GOOS == "windows":
		return "Its log: the event viewer, under Application"
	}
	return ""
}

// Uninstall stops and removes the service.
func (s *Service) Uninstall() error {
	svc, err := s.open(noProgram{})
	if err != nil {
		return err
	}
	if err := manageable(svc); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	if unit, err := s.unitFile(); err == nil && runtime.GOOS == "linux" {
		if _, err := os.Lstat(unit); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("uninstall: the service is not installed: %w", err)
		}
	}
	_ = svc.Stop() // it may not run
	if err := svc.Uninstall(); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	return nil
}

// Status returns an error unless the service runs.
func (s *Service) Status() error {
	svc, err := s.open(noProgram{})
	if err != nil {
		return err
	}
	if err := manageable(svc); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	status, err := svc.Status()
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if status != service.StatusRunning {
		return errors.New("service is installed but not running")
	}
	if s.pauses() {
		return errors.New("the service ends soon after each start, and systemd starts it again. " + s.logsAt(svc.Platform()))
	}
	return nil
}

// pauses reports whether systemd waits before it starts an ended service again. The service package counts that as running.
func (s *Service) pauses() bool {
	if runtime.GOOS != "linux" {
		return false
	}
	args := []string{"is-active", s.Name + ".service"}
	if !s.System {
		args = append(args, "--user")
	}
	said, _ := exec.Command("systemctl", args...).Output() // its exit status is not 0
	return strings.TrimSpace(string(said)) == "activating"
}

// Restart returns a function that starts the service again, or nil if it is not
// installed.
func (s *Service) Restart() func() error {
	svc, err := s.open(noProgram{})
	if err != nil {
		return nil
	}
	if _, err := svc.Status(); err != nil {
		return nil
	}
	return svc.Restart
}

// Run runs as a service if Windows started this process as one. Elsewhere it only calls
// run.
func (s *Service) Run(ctx context.Context, run func(context.Context) error) error {
	if runtime.GOOS != "windows" || service.Interactive() {
		return run(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	svc, err := s.open(&serviceBody{run: func() error { return run(ctx) }, cancel: cancel, ended: make(chan error, 1)})
	if err != nil {
		return err
	}
	return svc.Run()
}

// A serviceBody is started and stopped by the system. Stop waits for the end of run.
type serviceBody struct {
	run    func() error
	cancel context.CancelFunc
	ended  chan error
}

func (p *serviceBody) Start(service.Service) error {
	go func() { p.ended <- p.run() }()
	return nil
}

func (p *serviceBody) Stop(service.Service) error {
	p.cancel()
	return <-p.ended
}
