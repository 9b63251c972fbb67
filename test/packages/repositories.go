package main

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// A site serves a release on loopback. For a path in altered, it serves that content in
// place of the file. It interrupts the transfer of the file cut.
type site struct {
	url     string
	altered map[string][]byte
	cut     string
}

// serve serves the folder dist until end is called.
func serve(dist string) (s *site, end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	s = &site{url: "http://" + listener.Addr().String(), altered: map[string][]byte{}}
	files := http.FileServer(http.Dir(dist))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cut != "" && r.URL.Path == "/"+s.cut {
			w.Header().Set("Content-Length", "1000000")
			_, _ = w.Write([]byte("the beginning"))
			return
		}
		if data, ok := s.altered[r.URL.Path]; ok {
			_, _ = w.Write(data)
			return
		}
		files.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	return s, func() { _ = server.Close() }, nil
}

// owner returns the value of a variable in packaging/owner.env.
func owner(name string) (string, error) {
	text, err := os.ReadFile("packaging/owner.env")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("packaging/owner.env: no %s", name)
}

// moved returns a file of the release in which this site's address replaces the
// repositories' public address.
func (s *site) moved(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	public, err := owner("PACKAGES")
	if err != nil {
		return nil, err
	}
	if !strings.Contains(string(text), public) {
		return nil, fmt.Errorf("%s does not name %s", path, public)
	}
	return []byte(strings.ReplaceAll(string(text), public, s.url)), nil
}

// alter makes the site serve a file with one byte changed.
func (s *site) alter(dist, path string) error {
	data, err := os.ReadFile(filepath.Join(dist, path))
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	s.altered["/"+path] = data
	return nil
}

// checkApt installs the package from the apt repository in the chroot. apt must refuse
// an altered index and an altered package. The package is installed in the end.
func checkApt(dist, root string) error {
	s, end, err := serve(dist)
	if err != nil {
		return err
	}
	defer end()
	sources, err := s.moved(filepath.Join(dist, "apt/ahp-relay.sources"))
	if err != nil {
		return err
	}
	const list = "etc/apt/sources.list.d/ahp-relay.sources"
	if err := os.WriteFile(filepath.Join(root, list), sources, 0o644); err != nil {
		return err
	}
	prefix := []string{"chroot", root, "apt-get", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Acquire::Retries=0", "-o", "APT::Update::Error-Mode=any", "-y"}
	apt := func(args ...string) error {
		_, err := say(prefix[0], append(prefix[1:len(prefix):len(prefix)], args...)...)
		return err
	}
	lists := func() error { // apt must forget the index that it has
		for _, dir := range []string{"var/lib/apt/lists", "var/cache/apt/archives"} {
			if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Join(root, dir, "partial"), 0o755); err != nil {
				return err
			}
		}
		return nil
	}
	for _, index := range []string{"apt/dists/stable/InRelease", "apt/dists/stable/main/binary-amd64/Packages.gz"} {
		if err := errors.Join(lists(), s.alter(dist, index)); err != nil {
			return err
		}
		if strings.HasSuffix(index, ".gz") { // otherwise apt would take the index in its other form
			if err := s.alter(dist, strings.TrimSuffix(index, ".gz")); err != nil {
				return err
			}
		}
		if apt("update") == nil {
			return fmt.Errorf("apt-get update accepts an altered %s", index)
		}
		clear(s.altered)
	}
	if err := errors.Join(lists(), apt("update")); err != nil {
		return err
	}
	deb, err := only(filepath.Join(dist, "apt/pool/main/*_amd64.deb"))
	if err == nil {
		err = s.alter(dist, "apt/pool/main/"+filepath.Base(deb))
	}
	if err != nil {
		return err
	}
	if apt("install", "ahp-relay") == nil {
		return errors.New("apt-get install accepts an altered package")
	}
	clear(s.altered)
	if err := apt("install", "ahp-relay"); err != nil {
		return err
	}
	log.Print("installed by apt from its repository; altered indexes and packages are refused")
	return os.Remove(filepath.Join(root, list))
}

// checkYum installs the package from the yum repository with dnf, below a directory.
// dnf must refuse an altered index and an altered package.
func checkYum(dist, work string) error {
	s, end, err := serve(dist)
	if err != nil {
		return err
	}
	defer end()
	repo, err := s.moved(filepath.Join(dist, "yum/ahp-relay.repo"))
	if err != nil {
		return err
	}
	root, repos := filepath.Join(work, "yum"), filepath.Join(work, "yum.repos")
	defer os.RemoveAll(root)
	if err := errors.Join(os.RemoveAll(root), os.MkdirAll(root, 0o755), os.MkdirAll(repos, 0o755), os.WriteFile(filepath.Join(repos, "ahp-relay.repo"), repo, 0o644)); err != nil {
		return err
	}
	install := func() error {
		if err := os.RemoveAll(filepath.Join(root, "var/cache")); err != nil {
			return err
		}
		_, err := say("dnf", "--assumeyes", "--installroot", root, "--setopt=reposdir="+repos, "--setopt=cachedir=/var/cache/dnf", "--setopt=keepcache=0",
			"--setopt=retries=1", "--setopt=tsflags=noscripts", "--releasever=1", "--disablerepo=*", "--enablerepo=ahp-relay", "install", "ahp-relay")
		return err
	}
	rpm, err := only(filepath.Join(dist, "yum/Packages/*x86_64.rpm"))
	if err != nil {
		return err
	}
	for _, path := range []string{"yum/repodata/repomd.xml", "yum/Packages/" + filepath.Base(rpm)} {
		if err := s.alter(dist, path); err != nil {
			return err
		}
		if install() == nil {
			return fmt.Errorf("dnf accepts an altered %s", path)
		}
		clear(s.altered)
	}
	if err := install(); err != nil {
		return err
	}
	version, err := say(filepath.Join(root, "usr/bin/host-agent"), "--version")
	if err != nil {
		return err
	}
	log.Print("installed by dnf from its repository: ", version)
	return nil
}
