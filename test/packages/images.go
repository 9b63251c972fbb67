package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"ahprelay/test/faultproxy"
	"ahprelay/test/testca"
)

// A podman runs podman without a daemon or systemd. All of podman's state is in the
// directory dir.
type podman struct{ dir string }

func (p podman) do(args ...string) (string, error) {
	return say("podman", append([]string{
		"--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--tmpdir", filepath.Join(p.dir, "tmp"),
		"--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file",
		"--network-config-dir", filepath.Join(p.dir, "networks"),
	}, args...)...)
}

// inImages lists the programs for which a release has images.
var inImages = []string{"relay", "host-agent"}

// locked has the options that docker-compose.yml sets for all services, with limits
// that every machine permits.
var locked = []string{"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"}

// checkImages loads the release's images and runs them to serve a host, as
// docker-compose.yml does: with three networks, of which two have no access to others,
// and with the host's token as a secret. Then it runs them with a certificate, as
// docker-compose.tls.yml does.
func checkImages(dist, dir string) error {
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
	var err error
	if images["refhost"], err = refhost(p); err != nil {
		return err
	}
	if err := p.serve(images, ""); err != nil {
		return err
	}
	if err := p.serve(images, tlsName); err != nil {
		return fmt.Errorf("with a certificate: %w", err)
	}
	return nil
}

// tlsName is the host name in the relay's certificate.
const tlsName = "relay.example.com"

// serve runs the services and checks them. If name is not empty, the relay has a
// certificate for it. In the end, serve removes everything except the images.
func (p podman) serve(images map[string]string, name string) (err error) {
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
	return p.serveHost(images, name)
}

// refhost makes an image that contains only the reference host, and returns its name.
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

// addressOf returns a container's address in a network. The test uses it in place of
// host names, because podman needs a plugin for names, which some machines lack.
func (p podman) addressOf(container, network string) (string, error) {
	return p.do("inspect", "--format", "{{(index .NetworkSettings.Networks \"ahp-"+network+"\").IPAddress}}", container)
}

// secret stores a value as podman's secret.
func (p podman) secret(name string, value []byte) error {
	file := filepath.Join(p.dir, name)
	if err := os.WriteFile(file, value, 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	_, err := p.do("secret", "create", name, file)
	return err
}

// certify stores the secrets of docker-compose.tls.yml. It returns a client that trusts
// the certificate. The certificate is its own authority, which the images do not know.
func (p podman) certify(name string) (*http.Client, error) {
	certFile, keyFile, err := testca.WriteFilesFor(net.IPv4(127, 0, 0, 1), p.dir, name)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for secret, file := range map[string]string{"tls-cert": certFile, "tls-key": keyFile} {
		text, err := os.ReadFile(file)
		if err == nil {
			err = errors.Join(os.Remove(file), p.secret(secret, text))
		}
		if err != nil {
			return nil, err
		}
		roots.AppendCertsFromPEM(text)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}}}, nil
}

// serveHost runs relay, host and host-agent. It checks that clients reach the host only
// through them, and that the relay's commands work.
func (p podman) serveHost(images map[string]string, name string) error {
	address, err := faultproxy.FreeAddress()
	if err != nil {
		return err
	}
	ip, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	variables, files, client, base := map[string]string{"AHP_ADDRESS": ip, "AHP_PORT": port}, []string{"docker-compose.yml"}, http.DefaultClient, "http://"+address
	if name != "" {
		variables["AHP_NAME"], files, base = name, append(files, "docker-compose.tls.yml"), "https://"+address
		if client, err = p.certify(name); err != nil {
			return err
		}
	}
	services, err := compose(variables, files...)
	if err != nil {
		return err
	}
	start := func(service string, more ...string) error {
		args := append(append([]string{"run", "--detach", "--name", service}, locked...), services[service].flags()...)
		_, err := p.do(append(append(args, more...), images[cmp.Or(map[string]string{"host": "refhost"}[service], service)])...)
		return err
	}
	relay := func(args ...string) (string, error) {
		return p.do(append([]string{"exec", "relay", "/relay"}, args...)...)
	}
	if err := start("relay"); err != nil {
		return err
	}
	if err := eventually(func() error { _, err := relay("check"); return err }); err != nil {
		return fmt.Errorf("the relay's health check: %w", err)
	}
	if err := eventually(func() error { _, err := answers(client, base+"/readyz", ""); return err }); err != nil {
		return fmt.Errorf("the published port: %w", err)
	}
	if err := start("host"); err != nil {
		return err
	}
	token, err := relay("token", "host", "--host", "demo")
	if err == nil {
		err = p.secret("host-token", []byte(token))
	}
	if err != nil {
		return err
	}
	atRelay, err := p.addressOf("relay", "uplink")
	if err != nil {
		return err
	}
	atHost, err := p.addressOf("host", "private")
	if err != nil {
		return err
	}
	more := []string{"--add-host", cmp.Or(name, "relay") + ":" + atRelay, "--add-host", "host:" + atHost}
	if name != "" {
		more = append(more, "--secret", "tls-cert,uid=65532,mode=0400", "--env", "AHP_AGENT_CA_FILE=/run/secrets/tls-cert")
	}
	if err := start("host-agent", more...); err != nil {
		return err
	}
	if err := p.checkHost(client, base, relay); err != nil {
		logs, _ := p.do("logs", "host-agent")
		return fmt.Errorf("%w\n%s", err, logs)
	}
	if said, err := p.do("exec", "host-agent", "/host-agent", "clients"); err != nil {
		return fmt.Errorf("host-agent clients prints %s: %w", said, err)
	}
	log.Print("the host is online through relay and host-agent in containers, at ", base)
	return p.endWell("host-agent", "relay")
}

// checkHost checks that a client reaches the host, and that it cannot after its token
// has been revoked.
func (p podman) checkHost(client *http.Client, base string, relay func(...string) (string, error)) error {
	token, err := relay("token", "client", "--host", "demo", "--subject", "ada")
	if err != nil {
		return err
	}
	err = eventually(func() error {
		said, err := answers(client, base+"/api/hosts/demo", token)
		if err == nil && !strings.Contains(said, `"online"`) {
			err = fmt.Errorf("the host is not online: %s", said)
		}
		return err
	})
	if err != nil {
		return err
	}
	if said, err := relay("hosts"); err != nil || !strings.Contains(said, "demo") || !strings.Contains(said, "online") {
		return fmt.Errorf("relay hosts prints %s, %v; want the demo host online", said, err)
	}
	if said, err := relay("revoke", "--subject", "ada"); err != nil {
		return fmt.Errorf("relay revoke prints %s: %w", said, err)
	}
	if said, err := answers(client, base+"/api/hosts/demo", token); err == nil {
		return fmt.Errorf("a revoked token is accepted: %s", said)
	}
	return nil
}

// endWell stops containers, and returns an error unless each exits with status 0.
func (p podman) endWell(names ...string) error {
	for _, name := range names {
		if _, err := p.do("stop", "--time", "15", name); err != nil {
			return err
		}
		code, err := p.do("inspect", "--format", "{{.State.ExitCode}}", name)
		if err != nil || code != "0" {
			return fmt.Errorf("%s ends with status %s, %v; want 0", name, code, err)
		}
	}
	return nil
}
