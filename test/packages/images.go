package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"ahprelay/test/faultproxy"
)

// podman runs podman with all state in a directory of its own, without a daemon or
// systemd.
type podman struct{ dir string }

func (p podman) do(args ...string) (string, error) {
	return say("podman", append([]string{
		"--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--tmpdir", filepath.Join(p.dir, "tmp"),
		"--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file",
		"--network-config-dir", filepath.Join(p.dir, "networks"),
	}, args...)...)
}

// inImages are the programs with images.
var inImages = []string{"relay", "host-agent"}

// locked are the options of all services in docker-compose.yml, with limits that work
// on any machine.
var locked = []string{"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"}

// checkImages loads the images that were made, and has them serve a host as docker-compose.yml does: three
// networks, of which two lead nowhere else, and the host's token as a secret.
func checkImages(dist, dir string) (err error) {
	p := podman{dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	images := map[string]string{}
	for _, name := range inImages {
		file, err := only(filepath.Join(dist, "ahp-"+name+"_*_oci.tar"))
		if err != nil {
			return err
		}
		said, err := p.do("load", "--quiet", "--input", file)
		if err != nil {
			return err
		}
		_, images[name], _ = strings.Cut(said, ": ")
	}
	if images["refhost"], err = refhost(p); err != nil {
		return err
	}
	defer func() {
		_, e := p.do("rm", "--force", "--all", "--time", "5")
		_, e2 := p.do("network", "prune", "--force")
		_, e3 := p.do("secret", "rm", "--all")
		_, e4 := p.do("volume", "rm", "--all", "--force")
		err = errors.Join(err, e, e2, e3, e4)
	}()
	for _, network := range [][]string{{"ahp-public"}, {"--internal", "ahp-uplink"}, {"--internal", "ahp-private"}} {
		if _, err := p.do(append([]string{"network", "create"}, network...)...); err != nil {
			return err
		}
	}
	return serveHost(p, images)
}

// refhost makes an image of the reference host, from nothing.
func refhost(p podman) (string, error) {
	context, err := os.MkdirTemp(p.dir, "refhost-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(context)
	build := []string{"CGO_ENABLED=0", "go", "build", "-o", filepath.Join(context, "refhost"), "./test/cmd/refhost"}
	if _, err := say("env", build...); err != nil {
		return "", err
	}
	file := "FROM scratch\nUSER 65532:65532\nCOPY refhost /refhost\nENTRYPOINT [\"/refhost\"]\nCMD [\"--listen\", \"0.0.0.0:8090\", \"--demo\"]\n"
	if err := os.WriteFile(filepath.Join(context, "Containerfile"), []byte(file), 0o600); err != nil {
		return "", err
	}
	_, err = p.do("build", "--quiet", "--isolation", "chroot", "--tag", "refhost", context)
	return "localhost/refhost", err
}

// names has containers find others by their names, without a plugin of podman's: at their addresses in a
// network.
func (p podman) names(networks map[string]string) (args []string, err error) {
	for name, network := range networks {
		address, err := p.do("inspect", "--format", "{{(index .NetworkSettings.Networks \""+network+"\").IPAddress}}", name)
		if err != nil {
			return nil, err
		}
		args = append(args, "--add-host", name+":"+address)
	}
	return args, nil
}

// serveHost runs relay, host and host-agent, and checks that the host is reachable
// through them only.
func serveHost(p podman, images map[string]string) error {
	address, err := faultproxy.FreeAddress()
	if err != nil {
		return err
	}
	start := func(name string, args ...string) error {
		_, err := p.do(append(append([]string{"run", "--detach", "--name", name}, locked...), args...)...)
		return err
	}
	if err := start("relay", "--network", "ahp-public,ahp-uplink", "--publish", address+":8484", "--volume", "relay-data:/data", images["relay"]); err != nil {
		return err
	}
	if err := eventually(func() error { _, err := p.do("exec", "relay", "/relay", "check"); return err }); err != nil {
		return fmt.Errorf("the relay's health check: %w", err)
	}
	if err := eventually(func() error { _, err := answers("http://"+address+"/readyz", ""); return err }); err != nil {
		return fmt.Errorf("the published port: %w", err)
	}
	if err := start("host", "--network", "ahp-private", images["refhost"]); err != nil {
		return err
	}
	token, err := p.do("exec", "relay", "/relay", "token", "host", "--host", "demo")
	if err != nil {
		return err
	}
	secret := filepath.Join(p.dir, "host.token")
	if err := os.WriteFile(secret, []byte(token), 0o600); err != nil {
		return err
	}
	defer os.Remove(secret)
	if _, err := p.do("secret", "create", "host-token", secret); err != nil {
		return err
	}
	names, err := p.names(map[string]string{"relay": "ahp-uplink", "host": "ahp-private"})
	if err != nil {
		return err
	}
	if err := start("host-agent", append(names, "--network", "ahp-uplink,ahp-private", "--volume", "agent-data:/data", "--secret", "host-token,uid=65532,mode=0400",
		"--read-only=false", // podman 4.3 mounts a secret at a place that is not there, which Docker makes before it locks the rest
		"--env", "AHP_AGENT_RELAY=http://relay:8484", "--env", "AHP_AGENT_RELAY_PLAIN=true", "--env", "AHP_AGENT_TOKEN_FILE=/run/secrets/host-token",
		"--env", "AHP_AGENT_UPSTREAM=ws://host:8090", "--env", "AHP_AGENT_STATE_DIR=/data", images["host-agent"])...); err != nil {
		return err
	}
	client, err := p.do("exec", "relay", "/relay", "token", "client", "--host", "demo", "--subject", "ada")
	if err != nil {
		return err
	}
	err = eventually(func() error {
		said, err := answers("http://"+address+"/api/hosts/demo", client)
		if err == nil && !strings.Contains(said, `"online"`) {
			err = fmt.Errorf("the host is not online: %s", said)
		}
		return err
	})
	if err != nil {
		logs, _ := p.do("logs", "host-agent")
		return fmt.Errorf("%w\n%s", err, logs)
	}
	log.Print("the host is online through relay and host-agent in containers")
	for _, name := range []string{"host-agent", "relay"} {
		if _, err := p.do("stop", "--time", "15", name); err != nil {
			return err
		}
		code, err := p.do("inspect", "--format", "{{.State.ExitCode}}", name)
		if err != nil || code != "0" {
			return fmt.Errorf("%s ends with %s, %w; want 0", name, code, err)
		}
	}
	return nil
}
