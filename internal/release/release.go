// Package release finds newer releases of a program, verifies their signature, and
// replaces an installed program. A release, written by `make release`, contains
// SHA256SUMS, its ECDSA signature SHA256SUMS.sig, and an archive for each program and
// system. Requests contain no identifier.
package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/mod/semver"
)

// Set by `make release` with a key: the URL of the latest release, and the public key's coordinates,
// 32 bytes each, in base64.
var latest, publicPoint string

var (
	// ErrNoSource reports that this program was not built by `make release` with a key.
	ErrNoSource = errors.New("this program is not a signed release, so it knows no place for updates")

	// ErrSignature reports that the release is not signed with our key.
	ErrSignature = errors.New("the signature of SHA256SUMS is wrong: the release was altered, or is not ours")

	// ErrChecksum reports that an archive does not match its signed checksum.
	ErrChecksum = errors.New("the archive does not have the signed checksum: the download was altered or cut")

	// ErrNotInstalled reports that the install script has not installed the program.
	ErrNotInstalled = errors.New("the install script did not install this program: update it the way it was installed")
)

const (
	maxSums    = 1 << 20
	maxArchive = 256 << 20
	maxProgram = 512 << 20
)

// A Source is the URL of a release, and the key that must have signed it.
type Source struct {
	URL  string
	Key  *ecdsa.PublicKey // P-256
	HTTP *http.Client
}

// Released returns the source of this program's releases.
func Released() (Source, error) {
	if latest == "" || publicPoint == "" {
		return Source{}, ErrNoSource
	}
	point, err := base64.StdEncoding.DecodeString(publicPoint)
	if err != nil {
		return Source{}, fmt.Errorf("public key: %w", err)
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append([]byte{4}, point...))
	if err != nil {
		return Source{}, fmt.Errorf("public key: %w", err)
	}
	return Source{latest, key, http.DefaultClient}, nil
}

// An Archive is a program's archive for this machine in a release.
type Archive struct {
	Version string
	program string
	file    string
	sum     string // SHA-256, in hex
}

// Newer reports whether the archive's version is higher than a program's version, which
// may end in +COMMIT.
func (a Archive) Newer(version string) bool {
	return semver.Compare("v"+a.Version, "v"+version) > 0
}

// Newest finds the program's archive for this machine, and verifies the signature of
// SHA256SUMS. It does not download the archive.
func (s Source) Newest(ctx context.Context, program string) (Archive, error) {
	sums, err := s.get(ctx, "SHA256SUMS", maxSums)
	if err != nil {
		return Archive{}, err
	}
	signature, err := s.get(ctx, "SHA256SUMS.sig", maxSums)
	if err != nil {
		return Archive{}, err
	}
	der, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(signature)))
	if err != nil {
		return Archive{}, fmt.Errorf("%s: %w", s.URL, ErrSignature)
	}
	digest := sha256.Sum256(sums)
	if !ecdsa.VerifyASN1(s.Key, digest[:], der) {
		return Archive{}, fmt.Errorf("%s: %w", s.URL, ErrSignature)
	}
	return find(string(sums), program, runtime.GOOS+"_"+runtime.GOARCH)
}

// find returns the only archive of a program for a target in the lines of SHA256SUMS.
func find(sums, program, target string) (Archive, error) {
	line := regexp.MustCompile(`(?m)^([0-9a-f]{64})  (` + regexp.QuoteMeta(program) + `_([0-9][0-9A-Za-z.-]*)_` + regexp.QuoteMeta(target) + `\.(?:tar\.gz|zip))$`)
	found := line.FindAllStringSubmatch(sums, -1)
	if len(found) != 1 {
		return Archive{}, fmt.Errorf("the release has %d archives of %s for %s; want 1", len(found), program, target)
	}
	a := Archive{program: program, sum: found[0][1], file: found[0][2], Version: found[0][3]}
	if !semver.IsValid("v" + a.Version) {
		return Archive{}, fmt.Errorf("the release's version %q is not of the form 1.2.3", a.Version)
	}
	return a, nil
}

func (s Source) get(ctx context.Context, name string, limit int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/"+name, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "") // the default names the Go version
	response, err := s.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/%s: %s", s.URL, name, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", s.URL, name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s/%s is longer than %d bytes", s.URL, name, limit)
	}
	return data, nil
}

// Fetch downloads an archive and returns the program in it.
func (s Source) Fetch(ctx context.Context, a Archive) ([]byte, error) {
	packed, err := s.get(ctx, a.file, maxArchive)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(packed); hex.EncodeToString(sum[:]) != a.sum {
		return nil, fmt.Errorf("%s/%s: %w", s.URL, a.file, ErrChecksum)
	}
	program, err := unpack(packed, a.file, a.program)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", s.URL, a.file, err)
	}
	return program, nil
}

// unpack returns the program in an archive, FOLDER/PROGRAM or FOLDER/PROGRAM.exe.
func unpack(packed []byte, file, program string) ([]byte, error) {
	if runtime.GOOS == "windows" { // a constant: other systems' programs leave archive/zip out
		folder := strings.TrimSuffix(file, ".zip")
		archive, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
		if err != nil {
			return nil, err
		}
		f, err := archive.Open(folder + "/" + program + ".exe")
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readProgram(f)
	}
	folder := strings.TrimSuffix(file, ".tar.gz")
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return nil, fmt.Errorf("no %s in the archive", program)
		}
		if err != nil {
			return nil, err
		}
		if header.Name == folder+"/"+program {
			return readProgram(archive)
		}
	}
}

func readProgram(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxProgram+1))
	if err == nil && len(data) > maxProgram {
		err = fmt.Errorf("the program is longer than %d bytes", maxProgram)
	}
	return data, err
}

// An Installed is a program installed by the install script.
type Installed struct{ path string }

// mark returns the path of the file which the install script writes beside a program.
func (i Installed) mark() string {
	return filepath.Join(filepath.Dir(i.path), "."+strings.TrimSuffix(filepath.Base(i.path), ".exe")+".installed")
}

func (i Installed) previous() string { return i.path + ".previous" }

// Find returns the program at this path. The error is [ErrNotInstalled] if the install
// script did not install it.
func Find(path string) (Installed, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Installed{}, err
	}
	i := Installed{path}
	if _, err := os.Stat(i.mark()); err != nil {
		return Installed{}, fmt.Errorf("%s: %w", path, ErrNotInstalled)
	}
	return i, nil
}

// Replace replaces the installed program (atomically, except on Windows), and keeps the earlier program for
// [Installed.Restore]. Before that it calls try with the new program's path.
func (i Installed) Replace(program []byte, try func(path string) error) (err error) {
	// The name ends in .exe if it must, because Windows starts no other file.
	next := filepath.Join(filepath.Dir(i.path), ".next-"+filepath.Base(i.path))
	defer os.Remove(next)
	if err := os.WriteFile(next, program, 0o755); err != nil {
		return err
	}
	if err := try(next); err != nil {
		return fmt.Errorf("the new program does not start on this machine: %w", err)
	}
	keep := os.Link // keeps the program in place until it is replaced
	if runtime.GOOS == "windows" {
		keep = os.Rename // on Windows, a running program can be renamed, but not replaced
	}
	if err := os.Remove(i.previous()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := keep(i.path, i.previous()); err != nil {
		return err
	}
	if err := os.Rename(next, i.path); err != nil {
		return errors.Join(err, i.Restore())
	}
	return nil
}

// Restore undoes the last [Installed.Replace].
func (i Installed) Restore() error { return os.Rename(i.previous(), i.path) }
