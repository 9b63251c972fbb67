package procs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// These are the names of the programs.
const (
	RelayProgram = "relay"
	AgentProgram = "host-agent"
	HostProgram  = "refhost"
	NATSProgram  = "nats-server"

	ConnectProgram = "ahp-connect"
)

// These are the packages of the programs. The last part of a package's path, without a
// major version, is the program's name.
const (
	relayPackage = "ahprelay/cmd/relay"
	agentPackage = "ahprelay/cmd/host-agent"
	hostPackage  = "ahprelay/test/cmd/refhost"
	natsPackage  = "github.com/nats-io/nats-server/v2"

	connectPackage = "ahprelay/cmd/ahp-connect"
)

// all lists the packages of all programs.
var all = []string{relayPackage, agentPackage, hostPackage, natsPackage}

// BuiltEnv is the environment variable that tells tests that test/cmd/programs has built
// the shared programs for them. Otherwise, each test compares the programs with their
// sources, which takes seconds.
const BuiltEnv = "AHP_TEST_PROGRAMS_BUILT"

// With the environment variable RaceEnv, Build builds programs with the race detector and
// the check of the lock order (package lockorder). If either finds a fault, the program
// ends, and [Bench.Verify] reports the fault.
const RaceEnv = "AHP_TEST_PROGRAMS_RACE"

// Build builds all programs and returns their directory. All tests share this
// directory. A program that is up to date is not linked again.
func Build(ctx context.Context) (dir string, err error) {
	if os.Getenv(RaceEnv) != "" {
		return share(ctx, "race", []string{"-race", "-tags=lockorder"}, all)
	}
	return share(ctx, "plain", nil, all)
}

// BuildConnect builds ahp-connect, which few tests use, and returns its directory.
func BuildConnect(ctx context.Context) (dir string, err error) {
	return share(ctx, "connect", nil, []string{connectPackage})
}

// BuildTo builds all programs into the caller's own directory. A long run needs this,
// because it must not start newer programs later.
func BuildTo(ctx context.Context, dir string) error { return build(ctx, dir, nil, all) }

// BuildWith builds relay and host-agent into dir, with additional linker flags.
func BuildWith(ctx context.Context, dir, ldflags string) error {
	return build(ctx, dir, []string{"-ldflags=-s -w " + ldflags}, []string{relayPackage, agentPackage})
}

// share builds programs into a directory in the module's bin/test, which all tests
// share.
func share(ctx context.Context, name string, flags, packages []string) (dir string, err error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(root, "bin", "test", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if os.Getenv(BuiltEnv) == "" {
		err = build(ctx, dir, flags, packages)
	}
	return dir, errors.Join(err, Sources(ctx, packages...))
}

// Root returns the directory of the module.
func Root(ctx context.Context) (string, error) { return goTool(ctx, "list", "-m", "-f", "{{.Dir}}") }

func build(ctx context.Context, dir string, flags, packages []string) error {
	// Without debug information, linking takes half as long.
	args := append([]string{"build", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}, flags...)
	_, err := goTool(ctx, append(args, packages...)...)
	return err
}

// Sources reads the directories with the source of packages and of what they import in
// this module. The go command repeats a cached test only if a file that the test has
// read has changed. It does not know which programs a test builds.
func Sources(ctx context.Context, packages ...string) error {
	list, err := goTool(ctx, append([]string{"list", "-deps", "-test", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}\n{{.Dir}}{{end}}{{end}}"}, packages...)...)
	if err != nil {
		return err
	}
	read := map[string]bool{}
	for dir := range strings.Lines(list) {
		if dir = strings.TrimSpace(dir); dir == "" || read[dir] {
			continue
		}
		read[dir] = true
		if _, err := os.ReadDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// goTool runs the go command, and returns its output.
func goTool(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, exit.Stderr)
		}
		return "", err
	}
	return strings.TrimSpace(string(out)), nil
}

// lock waits until no other process builds into dir, and then keeps other processes out
// until unlock.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
	}
}
