package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/blakesmith/ar"
)

// A packageSigner signs packages and their repositories with an OpenPGP key. Keys of
// RSA and EdDSA give equal signatures each time.
type packageSigner struct {
	entity *openpgp.Entity
	config *packet.Config
}

// readPackageSigner reads a secret key as gpg --export-secret-keys --armor writes it,
// without a passphrase. Signatures carry the commit's time, or the key's if it is newer.
func readPackageSigner(path string, when time.Time) (*packageSigner, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ring, err := openpgp.ReadArmoredKeyRing(f)
	if err == nil && len(ring) != 1 {
		err = fmt.Errorf("%d keys; want one", len(ring))
	}
	if err == nil && (ring[0].PrivateKey == nil || ring[0].PrivateKey.Encrypted) {
		err = errors.New("the key is public, or has a passphrase")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: want a secret key as from gpg --export-secret-keys --armor: %w", path, err)
	}
	if made := ring[0].PrimaryKey.CreationTime; made.After(when) {
		when = made
	}
	randomized := false
	return &packageSigner{ring[0], &packet.Config{
		DefaultHash: crypto.SHA256, Time: func() time.Time { return when }, NonDeterministicSignaturesViaNotation: &randomized,
	}}, nil
}

// detached returns a detached signature, as bytes.
func (s *packageSigner) detached(data io.Reader) ([]byte, error) {
	var b bytes.Buffer
	err := openpgp.DetachSign(&b, s.entity, data, s.config)
	return b.Bytes(), err
}

// armored returns a detached signature, as text.
func (s *packageSigner) armored(data []byte) ([]byte, error) {
	var b bytes.Buffer
	err := openpgp.ArmoredDetachSign(&b, s.entity, bytes.NewReader(data), s.config)
	return append(b.Bytes(), '\n'), err
}

// publicKey returns the public key, as text.
func (s *packageSigner) publicKey() ([]byte, error) {
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.entity.Serialize(w), w.Close()); err != nil {
		return nil, err
	}
	return append(b.Bytes(), '\n'), nil
}

// repositories writes signed repositories of the packages: apt/ and yum/.
func (r *release) repositories() error {
	key, err := r.packager.publicKey()
	if err != nil {
		return err
	}
	if err := r.write("apt/ahp-relay.asc", key); err != nil {
		return err
	}
	if err := r.write("yum/ahp-relay.asc", key); err != nil {
		return err
	}
	if err := r.apt(key); err != nil {
		return fmt.Errorf("apt: %w", err)
	}
	if err := r.yum(); err != nil {
		return fmt.Errorf("yum: %w", err)
	}
	return nil
}

// link puts a file of the output at a second place, too.
func (r *release) link(name, at string) error {
	r.made = append(r.made, at)
	path := filepath.Join(r.out, at)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Link(filepath.Join(r.out, name), path))
}

// packed returns the names of the packages so far.
func (r *release) packed(ending string) (names []string) {
	for _, name := range r.made {
		if !strings.Contains(name, "/") && strings.HasSuffix(name, ending) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// apt writes a repository with the suite "stable".
func (r *release) apt(key []byte) error {
	lists := map[string]*bytes.Buffer{} // Packages, by processor
	for _, name := range r.packed(".deb") {
		data, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		control, err := controlOf(data)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		at := "pool/main/" + name
		if err := r.link(name, "apt/"+at); err != nil {
			return err
		}
		processor := strings.TrimSuffix(name[strings.LastIndexByte(name, '_')+1:], ".deb")
		list := lists[processor]
		if list == nil {
			list = new(bytes.Buffer)
			lists[processor] = list
		}
		fmt.Fprintf(list, "%s\nFilename: %s\nSize: %d\nSHA256: %x\n\n", strings.TrimSpace(control), at, len(data), sha256.Sum256(data))
	}
	var processors []string
	var sums strings.Builder
	add := func(name string, data []byte) error {
		fmt.Fprintf(&sums, " %x %d %s\n", sha256.Sum256(data), len(data), name)
		return r.write("apt/dists/stable/"+name, data)
	}
	for _, t := range targets {
		list := lists[t.processor]
		if list == nil || slices.Contains(processors, t.processor) {
			continue
		}
		processors = append(processors, t.processor)
		packed, err := gzipped(list.Bytes())
		if err != nil {
			return err
		}
		folder := "main/binary-" + t.processor + "/Packages"
		if err := errors.Join(add(folder, list.Bytes()), add(folder+".gz", packed)); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("Origin: AHP relay\nLabel: AHP relay\nSuite: stable\nCodename: stable\nDate: %s\nArchitectures: %s\nComponents: main\nSHA256:\n%s",
		r.when.Format("Mon, 02 Jan 2006 15:04:05 UTC"), strings.Join(processors, " "), sums.String())
	signature, err := r.packager.armored([]byte(text))
	if err != nil {
		return err
	}
	var inline bytes.Buffer
	signing, ok := r.packager.entity.SigningKey(r.packager.config.Time())
	if !ok {
		return errors.New("the package key cannot sign, or has expired")
	}
	w, err := clearsign.Encode(&inline, signing.PrivateKey, r.packager.config)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	// deb822's indentation, where a dot stands for an empty line.
	var indented strings.Builder
	for line := range strings.Lines(strings.TrimSpace(string(key))) {
		indented.WriteString(" " + cmp.Or(strings.TrimRight(line, "\n"), ".") + "\n")
	}
	sources := fmt.Sprintf("Types: deb\nURIs: %s/apt\nSuites: stable\nComponents: main\nSigned-By:\n%s", r.owner["PACKAGES"], indented.String())
	return errors.Join(
		r.write("apt/dists/stable/Release", []byte(text)),
		r.write("apt/dists/stable/Release.gpg", signature),
		r.write("apt/dists/stable/InRelease", append(inline.Bytes(), '\n')),
		r.write("apt/ahp-relay.sources", []byte(sources)),
	)
}

// controlOf returns a Debian package's control file.
func controlOf(deb []byte) (string, error) {
	for archive := ar.NewReader(bytes.NewReader(deb)); ; {
		head, err := archive.Next()
		if err != nil {
			return "", fmt.Errorf("no control.tar.gz: %w", err)
		}
		if strings.TrimRight(head.Name, "/ ") != "control.tar.gz" {
			continue
		}
		zip, err := gzip.NewReader(archive)
		if err != nil {
			return "", err
		}
		for files := tar.NewReader(zip); ; {
			head, err := files.Next()
			if err != nil {
				return "", fmt.Errorf("no control file: %w", err)
			}
			if strings.TrimPrefix(head.Name, "./") == "control" {
				text, err := io.ReadAll(files)
				return string(text), err
			}
		}
	}
}

// yum writes a repository with createrepo_c, which Debian and Fedora have.
func (r *release) yum() error {
	for _, name := range r.packed(".rpm") {
		if err := r.link(name, "yum/Packages/"+name); err != nil {
			return err
		}
		if err := os.Chtimes(filepath.Join(r.out, "yum/Packages", name), r.when, r.when); err != nil {
			return err
		}
	}
	dir := filepath.Join(r.out, "yum")
	cmd := exec.Command("createrepo_c", "--quiet", "--no-database", "--general-compress-type=gz", fmt.Sprintf("--revision=%d", r.when.Unix()), "--set-timestamp-to-revision", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s (on Debian, install createrepo-c)", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "repodata", "*"))
	if err != nil {
		return err
	}
	for _, path := range made {
		r.made = append(r.made, "yum/repodata/"+filepath.Base(path))
	}
	index, err := os.ReadFile(filepath.Join(dir, "repodata/repomd.xml"))
	if err != nil {
		return err
	}
	signature, err := r.packager.armored(index)
	if err != nil {
		return err
	}
	base := r.owner["PACKAGES"] + "/yum"
	repo := fmt.Sprintf("[ahp-relay]\nname=AHP relay\nbaseurl=%s\ngpgkey=%s/ahp-relay.asc\ngpgcheck=1\nrepo_gpgcheck=1\nenabled=1\n", base, base)
	return errors.Join(r.write("yum/repodata/repomd.xml.asc", signature), r.write("yum/ahp-relay.repo", []byte(repo)))
}
