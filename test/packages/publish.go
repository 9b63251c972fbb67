package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A publishing runs packaging/publish.sh with servers on this machine in place of the
// real ones.
type publishing struct {
	dist, dir, version string
	registry           string // address of the container registry
	npm                *npmRegistry
}

// checkPublish rehearses packaging/publish.sh. Files and packages go to folders, images
// to a container registry, npm packages to an npm registry, formulas and manifests to
// git repositories. Each step can be repeated, and a failed step ends the run. The
// chart is published only if helm is installed.
func checkPublish(dist, dir string) error {
	chart, err := only(filepath.Join(dist, "ahp-relay-chart-*.tgz"))
	if err != nil {
		return err
	}
	p := &publishing{dist: dist, dir: dir, version: strings.TrimSuffix(strings.TrimPrefix(filepath.Base(chart), "ahp-relay-chart-"), ".tgz"), npm: &npmRegistry{has: map[string]npmPackage{}}}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var end func()
	if p.registry, end, err = containerRegistry(dir); err != nil {
		return err
	}
	defer end()
	npmURL, end, err := p.npm.serve()
	if err != nil {
		return err
	}
	defer end()
	for _, repository := range []string{"tap", "bucket"} {
		if _, err := say("git", "init", "--quiet", "--bare", p.at(repository)); err != nil {
			return err
		}
	}
	for _, folder := range []string{"files", "packages", "home"} {
		if err := os.Mkdir(p.at(folder), 0o700); err != nil {
			return err
		}
	}
	env := []string{
		"HOME=" + p.at("home"), "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=rehearsal", "GIT_CONFIG_KEY_1=user.email", "GIT_CONFIG_VALUE_1=rehearsal@localhost",
		"PACKAGES_TO=" + p.at("packages"), "TAP=" + p.at("tap"), "BUCKET=" + p.at("bucket"), "IMAGES=" + p.registry + "/x", "SKOPEO_FLAGS=--dest-tls-verify=false", "HELM_FLAGS=--plain-http",
		"npm_config_registry=" + npmURL, "npm_config_cache=" + p.at("home/npm"),
	}
	if err := os.WriteFile(p.at("home/.npmrc"), []byte(strings.TrimPrefix(npmURL, "http:")+"/:_authToken=x\n"), 0o600); err != nil {
		return err
	}
	parts := []string{"files", "packages", "images", "npm", "taps"}
	if _, err := exec.LookPath("helm"); err == nil {
		parts = append(parts, "chart")
	} else {
		log.Print("helm is not installed: the chart is not pushed")
	}
	publish := func(env []string, parts ...string) error {
		_, err := say("env", append(env, append([]string{"packaging/publish.sh", dist}, parts...)...)...)
		return err
	}
	nowhere := slices.Concat(env, []string{"FILES_TO=" + p.at("none/files"), "TAP=" + p.at("none/tap")})
	for _, part := range []string{"files", "taps"} {
		if err := publish(nowhere, part); err == nil {
			return fmt.Errorf("publish.sh %s without a place returns no error; want one", part)
		}
	}
	env = append(env, "FILES_TO="+p.at("files"))
	for range 2 { // a second run must succeed, too
		if err := publish(env, parts...); err != nil {
			return err
		}
	}
	if err := errors.Join(p.files(), p.images(), p.packages(), p.taps()); err != nil {
		return err
	}
	log.Print("published twice to stand-ins: ", strings.Join(parts, ", "))
	return nil
}

func (p *publishing) at(name string) string { return filepath.Join(p.dir, name) }

// files checks the folder of the release, and that only a stable release becomes the
// latest.
func (p *publishing) files() error {
	sums := p.at("files/v" + p.version)
	if _, err := say("env", "-C", sums, "sh", "-c", `grep -v / SHA256SUMS | sha256sum --check --strict --quiet && cmp SHA256SUMS.sig "$0"`, filepath.Join(p.dist, "SHA256SUMS.sig")); err != nil {
		return err
	}
	_, err := os.Stat(p.at("files/latest/SHA256SUMS.sig"))
	if pre := strings.Contains(p.version, "-"); pre == (err == nil) {
		return fmt.Errorf("after publishing %s, Stat in files/latest = %v; want the file, and none for a version with a hyphen", p.version, err)
	}
	return nil
}

// images compares the published images with the digests that were signed.
func (p *publishing) images() error {
	for _, name := range inImages {
		at := "docker://" + p.registry + "/x/ahp-" + name
		raw, err := exec.Command("skopeo", "inspect", "--raw", "--tls-verify=false", at+":"+p.version).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		tag := fmt.Sprintf("sha256-%x.sig", sha256.Sum256(raw))
		if _, err := say("skopeo", "inspect", "--raw", "--tls-verify=false", at+":"+tag); err != nil {
			return fmt.Errorf("no signature of the published image: %w", err)
		}
	}
	return nil
}

// packages checks the apt and yum repositories, and that the npm registry has all
// packages with the right tag.
func (p *publishing) packages() error {
	for _, name := range []string{"apt", "yum"} {
		if _, err := say("diff", "-r", filepath.Join(p.dist, name), p.at("packages/"+name)); err != nil {
			return err
		}
	}
	made, err := filepath.Glob(filepath.Join(p.dist, "npm/*.tgz"))
	if err != nil {
		return err
	}
	want := "latest"
	if strings.Contains(p.version, "-") {
		want = "next"
	}
	p.npm.mu.Lock()
	defer p.npm.mu.Unlock()
	for name, has := range p.npm.has {
		if has != (npmPackage{p.version, want}) {
			return fmt.Errorf("npm has %s %s as %s; want %s as %s", name, has.version, has.tag, p.version, want)
		}
	}
	if len(p.npm.has) != len(made) || p.npm.twice > 0 || !strings.Contains("ahp-host-agent ahp-connect", p.npm.last) {
		return fmt.Errorf("npm has %d packages, the one published last is %s, and %d were published again; want %d, 0 again, and last a program, after its packages for each platform", len(p.npm.has), p.npm.last, p.npm.twice, len(made))
	}
	return nil
}

// taps checks that each git repository has one commit, which contains the release's
// files.
func (p *publishing) taps() error {
	for repository, folder := range map[string]string{"tap": "homebrew/Formula", "bucket": "scoop/bucket"} {
		clone := p.at(repository + "-clone")
		if _, err := say("git", "clone", "--quiet", p.at(repository), clone); err != nil {
			return err
		}
		commits, err := say("git", "-C", clone, "rev-list", "--count", "HEAD")
		if err != nil {
			return err
		}
		if commits != "1" {
			return fmt.Errorf("%s has %s commits; want 1", repository, commits)
		}
		if _, err := say("diff", "-r", filepath.Join(p.dist, folder), filepath.Join(clone, path.Base(folder))); err != nil {
			return err
		}
	}
	return nil
}

// containerRegistry starts the program that stands in for a container registry. It
// returns the registry's address.
func containerRegistry(dir string) (address string, end func(), err error) {
	program := filepath.Join(dir, "registry")
	if _, err := say("go", "-C", "packaging/release", "build", "-o", program, "./registry"); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(program)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, err
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the program was killed, so it returns an error
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end()
		return "", nil, err
	}
	return strings.TrimSpace(line), end, nil
}

// An npmRegistry accepts packages as npm's registry does, which refuses a version that
// it has already.
type npmRegistry struct {
	mu    sync.Mutex
	has   map[string]npmPackage
	last  string // name of the last package that came
	twice int    // how often a version came that it had already
}

type npmPackage struct{ version, tag string }

func (n *npmRegistry) serve() (url string, end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: n}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// ServeHTTP implements [http.Handler].
func (n *npmRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	name := strings.TrimPrefix(r.URL.Path, "/")
	if r.Method == http.MethodGet {
		has, ok := n.has[name]
		if !ok {
			http.Error(w, `{"error":"not found"}`, http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{has.tag: has.version}, "versions": map[string]any{has.version: map[string]string{"name": name, "version": has.version}}})
		return
	}
	var put struct {
		Tags map[string]string `json:"dist-tags"`
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &put)
	}
	if err != nil || r.Method != http.MethodPut || len(put.Tags) != 1 {
		http.Error(w, `{"error":"no package"}`, http.StatusBadRequest)
		return
	}
	if _, ok := n.has[name]; ok {
		n.twice++
		http.Error(w, `{"error":"the version exists"}`, http.StatusForbidden)
		return
	}
	for tag, version := range put.Tags {
		n.has[name], n.last = npmPackage{version, tag}, name
	}
	_, _ = io.WriteString(w, `{"ok":true}`)
}
