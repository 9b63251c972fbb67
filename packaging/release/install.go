package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// readOwner reads packaging/owner.env: lines of NAME=value, and comments.
func readOwner(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	owner := map[string]string{}
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("%s:%d: want NAME=value", path, i+1)
		}
		owner[name] = value
	}
	for _, name := range []string{"LATEST", "VERSIONS", "PACKAGES", "IMAGES", "MAINTAINER", "SOURCE"} {
		if owner[name] == "" {
			return nil, fmt.Errorf("%s: %s is missing", path, name)
		}
	}
	return owner, nil
}

// linkerFlags returns the flags that give the programs their commit and, in a signed
// release, the address and key with which they check for updates.
func (r *release) linkerFlags() string {
	flags := "-s -w -buildid= -X ahprelay/cmd/internal/cli.commit=" + r.commit[:8]
	if r.signer != nil {
		x, y := r.point()
		flags += " -X ahprelay/internal/release.latest=" + r.owner["LATEST"] + " -X ahprelay/internal/release.publicPoint=" + base64.StdEncoding.EncodeToString(append(x, y...))
	}
	return flags
}

// point returns the public key's coordinates, of 32 bytes each.
func (r *release) point() (x, y []byte) {
	raw, err := r.signer.key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		panic(err) // the key was read as a P-256 key
	}
	return raw[1:33], raw[33:]
}

// installScripts writes install.sh and install.ps1 with the release's address and key, and
// release-key.pem.
func (r *release) installScripts() error {
	key, err := r.signer.publicPEM()
	if err != nil {
		return err
	}
	x, y := r.point()
	fill := strings.NewReplacer("@LATEST@", r.owner["LATEST"], "@VERSIONS@", r.owner["VERSIONS"], "@PUBLIC_KEY@", key, "@PUBLIC_POINT@", base64.StdEncoding.EncodeToString(append(x, y...)))
	for _, name := range []string{"install.sh", "install.ps1"} {
		text, err := os.ReadFile(filepath.Join(r.root, "packaging/install", name))
		if err != nil {
			return err
		}
		if err := r.write(name, []byte(fill.Replace(string(text)))); err != nil {
			return err
		}
	}
	return r.write("release-key.pem", []byte(key+"\n"))
}
