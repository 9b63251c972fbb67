// Command packages installs and runs the results of make release, as their users do:
// the .deb from its apt repository in a debootstrap chroot, where its unit's command is
// started; the .rpm with dnf; the npm packages with npx; Homebrew's formulas with a
// stand-in for Homebrew. It runs the images with podman, like the services of
// docker-compose.yml with their networks and secret, without and with a certificate, checks all signatures, and publishes
// to stand-ins for registries and repositories. It needs root, a signed release with all keys, and createrepo-c,
// debootstrap, dnf, minisign, npm, podman, rpm, rsync, runc, containernetworking-plugins, ruby and
// skopeo; helm publishes the chart if it is there. It runs on request: make packages.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"ahprelay/test/faultproxy"
)

func main() {
	log.SetFlags(0)
	dist := flag.String("dist", "dist", "what make release has made")
	work := flag.String("work", "", "directory for the chroot and podman, kept for the next time; default: one that is removed")
	suite := flag.String("suite", "bookworm", "Debian's release for the chroot")
	some := flag.String("only", "", "some checks, such as 'deb npm'; default: all")
	flag.Parse()
	if err := run(*dist, *work, *suite, *some); err != nil {
		log.Fatal("packages: ", err)
	}
	log.Print("everything checked is in order")
}

// parts lists the checks in the order in which they run.
var parts = []struct {
	name string
	do   func(dist, work, suite string) error
}{
	{"signatures", func(dist, work, _ string) error { return checkSignatures(dist, work) }},
	{"deb", func(dist, work, suite string) error { return checkDeb(dist, filepath.Join(work, "chroot"), suite) }},
	{"yum", func(dist, work, _ string) error { return checkYum(dist, work) }},
	{"npm", func(dist, work, _ string) error { return checkNPM(dist, work) }},
	{"homebrew", func(dist, work, _ string) error { return checkBrew(dist, work) }},
	{"scoop", func(dist, _, _ string) error { return checkScoop(dist) }},
	{"images", func(dist, work, _ string) error { return checkImages(dist, filepath.Join(work, "podman")) }},
	{"publish", func(dist, work, _ string) error { return checkPublish(dist, filepath.Join(work, "publish")) }},
	{"install", func(dist, work, suite string) error { return checkInstall(dist, filepath.Join(work, "chroot"), suite) }},
}

func run(dist, work, suite, some string) (err error) {
	if dist, err = filepath.Abs(dist); err != nil {
		return err
	}
	if err := has(dist, "SHA256SUMS"); err != nil {
		return err
	}
	if work == "" {
		if work, err = os.MkdirTemp("", "ahp-packages-"); err != nil {
			return err
		}
		defer os.RemoveAll(work)
	}
	for _, part := range parts {
		if some != "" && !slices.Contains(strings.Fields(some), part.name) {
			continue
		}
		if err := part.do(dist, work, suite); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// has returns an error if a release lacks a file.
func has(dist, name string) error {
	if _, err := os.Stat(filepath.Join(dist, name)); err != nil {
		return fmt.Errorf("no signed release: %w; make one in a clean clone, with make release ARGS='-key K -package-key P -minisign-key M' (RELEASING.md)", err)
	}
	return nil
}

// wait is the time within which a started program or service must work.
const wait = 30 * time.Second

// only returns the file that fits a pattern. It fails unless there is exactly one.
func only(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%s: %d files; want one", pattern, len(found))
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// say runs a command and returns its output.
func say(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// eventually repeats try until it returns no error, at most for the time wait.
func eventually(try func() error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for {
		if err = try(); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func answers(client *http.Client, url, token string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var b strings.Builder
	if err := response.Write(&b); err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return b.String(), nil
}

// bootstrap makes a chroot with Debian's smallest system, unless root contains one.
func bootstrap(root, suite string) error {
	if _, err := os.Stat(filepath.Join(root, "usr/bin/dpkg")); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log.Print("debootstrap ", suite)
	_, err := say("debootstrap", "--variant=minbase", suite, root)
	return err
}

// checkDeb installs the .deb package, starts the program and removes the package.
func checkDeb(dist, root, suite string) error {
	if err := bootstrap(root, suite); err != nil {
		return err
	}
	if err := checkApt(dist, root); err != nil {
		return err
	}
	within := func(args ...string) (string, error) { return say("chroot", append([]string{root}, args...)...) }
	version, err := within("relay", "--version")
	if err != nil {
		return err
	}
	log.Print("installed: ", version)
	for _, look := range [][2]string{
		{`zcat /usr/share/man/man1/relay.1.gz /usr/share/man/man1/host-agent.1.gz`, ".SH COMMANDS"},
		{`source /usr/share/bash-completion/completions/relay; COMP_WORDS=(relay se); COMP_CWORD=1; _relay; echo "${COMPREPLY[*]}"`, "serve"},
		{`source /usr/share/bash-completion/completions/host-agent; COMP_WORDS=(host-agent uns); COMP_CWORD=1; _host_agent; echo "${COMPREPLY[*]}"`, "unshare"},
		{`stat -c %a /etc/ahp-relay/relay.env`, "640"},
		{`cat /usr/share/ahp-relay/grafana/ahp-relay.json`, `"panels"`},
		{`cat /usr/share/ahp-relay/prometheus/alerts.yaml`, `AHPRelayDown`},
		{`relay config check /usr/share/doc/ahp-relay/relay.yaml`, `in order`},
	} {
		if got, err := within("bash", "-c", look[0]); err != nil || !strings.Contains(got, look[1]) {
			return fmt.Errorf("%s prints %.200q, %v; want %q in it", look[0], got, err, look[1])
		}
	}
	if err := startUnit(root); err != nil {
		return err
	}
	if _, err := within("dpkg", "--purge", "ahp-relay"); err != nil {
		return err
	}
	for _, gone := range []string{"usr/bin/relay", "usr/bin/host-agent", "usr/bin/ahp-connect", "usr/lib/systemd/system/ahp-relay.service", "etc/ahp-relay", "usr/share/man/man1/relay.1.gz", "usr/share/ahp-relay"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s exists after the package was purged; want it removed", gone)
		}
	}
	log.Print("removed, and nothing is left")
	return nil
}

// startUnit runs the command of the package's unit as a user who can write only to the
// state directory. It stops the command as systemd would.
func startUnit(root string) error {
	unit, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/ahp-relay.service"))
	if err != nil {
		return err
	}
	var start, env []string
	for line := range strings.Lines(string(unit)) {
		line = strings.TrimSpace(line)
		if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
			start = strings.Fields(command)
		}
		if value, ok := strings.CutPrefix(line, "Environment="); ok {
			env = append(env, value)
		}
	}
	const nobody = 65534
	state := filepath.Join(root, "var/lib/ahp-relay")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(state)
	if err := os.Chown(state, nobody, nobody); err != nil {
		return err
	}
	public, err := faultproxy.FreeAddress()
	if err != nil {
		return err
	}
	cmd := exec.Command(start[0], start[1:]...)
	cmd.Env = append(env, "AHP_RELAY_LISTEN="+public, "AHP_RELAY_ADMIN_LISTEN=none")
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = eventually(func() error {
		_, err := answers(http.DefaultClient, "http://"+public+"/readyz", "")
		return err
	})
	if err == nil {
		log.Print("started as its unit says, and ready")
		err = cmd.Process.Signal(syscall.SIGTERM)
	} else {
		_ = cmd.Process.Kill()
	}
	if e := cmd.Wait(); err == nil && e != nil {
		err = fmt.Errorf("the unit's program, after SIGTERM: %w", e)
	}
	return err
}
