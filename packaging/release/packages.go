package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packages makes a .deb and a .rpm with programs, units and their further files.
func (r *release) packages(t target, built []file) error {
	dir, err := os.MkdirTemp("", "ahp-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var contents files.Contents
	add := func(from, to string, mode os.FileMode, kind string) {
		contents = append(contents, &files.Content{Source: from, Destination: to, Type: kind, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.when}})
	}
	for _, f := range built {
		path := filepath.Join(dir, filepath.Base(f.name))
		data := f.data
		if strings.HasPrefix(f.name, "man/") { // as on installed systems
			if data, err = gzipped(data); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
		base := filepath.Base(f.name)
		switch {
		case strings.HasPrefix(f.name, "man/"):
			add(path, "/usr/share/man/man1/"+base+".gz", 0o644, "")
		case strings.HasSuffix(base, ".bash"):
			add(path, "/usr/share/bash-completion/completions/"+strings.TrimSuffix(base, ".bash"), 0o644, "")
		case strings.HasSuffix(base, ".fish"):
			add(path, "/usr/share/fish/vendor_completions.d/"+base, 0o644, "")
		case strings.HasPrefix(f.name, "completion/_"):
			add(path, "/usr/share/zsh/vendor-completions/"+base, 0o644, "")
		case f.mode == 0o755:
			add(path, "/usr/bin/"+f.name, 0o755, "")
		case f.name == dashboard || strings.HasPrefix(f.name, "prometheus/"):
			add(path, "/usr/share/ahp-relay/"+f.name, 0o644, "")
		default:
			add(path, "/usr/share/doc/ahp-relay/"+f.name, 0o644, "")
		}
	}
	packaging := filepath.Join(r.root, "packaging")
	for _, unit := range []string{"ahp-relay.service", "ahp-host-agent@.service"} {
		add(filepath.Join(packaging, "systemd", unit), "/usr/lib/systemd/system/"+unit, 0o644, "")
	}
	add(filepath.Join(packaging, "relay.env"), "/etc/ahp-relay/relay.env", 0o640, "config|noreplace")
	for _, format := range []string{"deb", "rpm"} {
		info := &nfpm.Info{
			Name: "ahp-relay", Version: r.version, Arch: t.processor, Platform: t.system, Section: "net", Priority: "optional",
			Maintainer: r.owner["MAINTAINER"], Vendor: "AHP relay", License: "Apache-2.0", MTime: r.when,
			Description: "Relay, host-agent and ahp-connect for the Agent Host Protocol\nReach the AI agent host in your private network from browser, phone or editor.",
			Overridables: nfpm.Overridables{
				Contents: contents,
				Scripts: nfpm.Scripts{
					PostInstall: filepath.Join(packaging, "postinstall.sh"), PreRemove: filepath.Join(packaging, "preremove.sh"),
				},
				RPM: nfpm.RPM{BuildHost: "localhost", Compression: "gzip:9"},
			},
		}
		if r.packager != nil {
			info.RPM.Signature.SignFn = r.packager.detached
		}
		if err := r.pack(format, nfpm.WithDefaults(info)); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) pack(format string, info *nfpm.Info) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := packager.Package(info, &b); err != nil {
		return err
	}
	// Packages order 1.0.0~rc.1 before 1.0.0. In a file's name, GitHub's releases replace the tilde.
	name := strings.ReplaceAll(strings.TrimSpace(packager.ConventionalFileName(info)), "~", "-")
	return r.write(name, b.Bytes())
}
