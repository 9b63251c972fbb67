// Command release builds archives, packages, images, an SBOM and checksums from the
// checked-out commit. Two runs give equal bytes. `make release` runs it. It is a separate
// module, so its dependencies stay out of the programs.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// targets are the systems and processors with archives.
var targets = []target{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

type target struct{ system, processor string }

func (t target) String() string { return t.system + "_" + t.processor }

// programs are the built programs.
var programs = []string{"relay", "host-agent", "ahp-connect"}

// A release is one run.
type release struct {
	root, out string
	version   string
	commit    string
	when      time.Time // of the commit; all files carry this time
	made      []string  // names of files in out
	built     map[target][]file
	printed   map[string][]file // manuals and completions, by program
	owner     map[string]string // of packaging/owner.env
	signer    *signer           // nil: no signatures with the project's key
	packager  *packageSigner    // nil: packages are not signed, and have no repositories
	modFile   string            // of changed libraries; "": not written yet
}

func main() {
	log.SetFlags(0)
	out := flag.String("out", "dist", "output directory, which is emptied first")
	only := flag.String("only", "", "one target, such as linux_amd64; default: all")
	key := flag.String("key", "", "PEM file of the ECDSA P-256 key that signs the release; without it, there are no install scripts, and the programs do not find updates")
	minisignKey := flag.String("minisign-key", "", "unencrypted minisign key that signs the release, too")
	packageKey := flag.String("package-key", "", "armored OpenPGP secret key that signs packages and makes apt and yum repositories of them")
	flag.Parse()
	if err := run(*out, *only, keys{*key, *minisignKey, *packageKey}); err != nil {
		log.Fatal("release: ", err)
	}
}

// keys are the files with the owner's keys.
type keys struct{ release, minisign, packages string }

func run(out, only string, with keys) error {
	r, err := begin(out)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Join(r.root, changedFolder)) // make lint reads the Go files below the root
	if with.release != "" {
		if r.signer, err = readSigner(with.release); err != nil {
			return err
		}
	}
	if with.packages != "" {
		if r.packager, err = readPackageSigner(with.packages, r.when); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	if only != "" {
		targets = slices.DeleteFunc(targets, func(t target) bool { return t.String() != only })
	}
	for _, t := range targets {
		if err := r.target(t); err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
	}
	type step struct {
		name string
		do   func() error
	}
	steps := []step{{"images", r.images}, {"chart", r.chart}, {"package managers", r.managers}}
	if r.packager != nil {
		steps = append(steps, step{"repositories", r.repositories})
	}
	if r.signer != nil {
		steps = append(steps, step{"install scripts", r.installScripts}, step{"provenance", r.provenance})
	}
	steps = append(steps, step{"checksums", r.checksums})
	if r.signer != nil {
		steps = append(steps, step{"signature", func() error { return r.sign("SHA256SUMS") }})
	}
	if with.minisign != "" {
		steps = append(steps, step{"minisign", func() error { return r.minisign(with.minisign, "SHA256SUMS") }})
	}
	for _, s := range steps {
		log.Print(s.name)
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// begin reads the commit and version.
func begin(out string) (*release, error) {
	root, err := output("", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	r := &release{root: root, built: map[target][]file{}}
	if r.out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	if r.commit, err = output(root, "git", "rev-parse", "HEAD"); err != nil {
		return nil, err
	}
	changed, err := output(root, "git", "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil, err
	}
	if changed != "" {
		log.Print("the working tree has uncommitted changes: the reported commit is not accurate")
	}
	seconds, err := output(root, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return nil, err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, err
	}
	r.when = time.Unix(unix, 0).UTC()
	text, err := os.ReadFile(filepath.Join(root, "cmd/internal/cli/cli.go"))
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(text), "const Version = \"")
	if !ok {
		return nil, errors.New("no version in cmd/internal/cli/cli.go")
	}
	r.version, _, _ = strings.Cut(rest, "\"")
	if r.owner, err = readOwner(filepath.Join(root, "packaging/owner.env")); err != nil {
		return nil, err
	}
	return r, nil
}

func output(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// A file is a released file.
type file struct {
	name string
	mode int64
	data []byte
}

// dashboard is the Grafana dashboard's path.
const dashboard = "grafana/ahp-relay.json"

// target makes the SBOM, archives and packages for a system and processor.
func (r *release) target(t target) error {
	log.Print("building for ", t)
	files, err := r.build(t)
	if err != nil {
		return err
	}
	if err := r.sbom(t, files); err != nil {
		return err
	}
	manuals, err := r.manuals()
	if err != nil {
		return err
	}
	var common []file
	for _, path := range []string{"README.md", "SECURITY.md", "LICENSE"} {
		data, err := os.ReadFile(filepath.Join(r.root, path))
		if err != nil {
			return err
		}
		common = append(common, file{path, 0o644, data})
	}
	board, err := os.ReadFile(filepath.Join(r.root, "packaging", dashboard))
	if err != nil {
		return err
	}
	rules, err := os.ReadFile(filepath.Join(r.root, "packaging/helm/ahp-relay/alerts.yaml"))
	if err != nil {
		return err
	}
	example, err := os.ReadFile(filepath.Join(r.root, "packaging/relay.yaml"))
	if err != nil {
		return err
	}
	relayOnly := []file{{dashboard, 0o644, board}, {"prometheus/alerts.yaml", 0o644, rules}, {"relay.yaml", 0o644, example}}
	for i, program := range programs {
		archive := append([]file{files[i]}, common...)
		if t.system != "windows" {
			archive = append(archive, manuals[program]...)
		}
		if program == "relay" {
			archive = append(archive, relayOnly...)
		}
		if err := r.archive(program, t, archive); err != nil {
			return err
		}
	}
	if t.system != "linux" {
		return nil
	}
	for _, program := range programs {
		files = append(files, manuals[program]...)
	}
	return r.packages(t, slices.Concat(files, common, relayOnly))
}

// build builds the programs, once.
func (r *release) build(t target) (files []file, err error) {
	if built := r.built[t]; built != nil {
		return slices.Clone(built), nil
	}
	dir, err := os.MkdirTemp("", "ahp-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	modFile, err := r.small()
	if err != nil {
		return nil, err
	}
	for _, name := range programs {
		path := filepath.Join(dir, name)
		flags := r.linkerFlags()
		args := []string{"build", "-trimpath", "-modfile=" + modFile, "-buildvcs=false", "-o", path}
		if name != "relay" {
			args = append(args, "-tags=nethttpomithttp2") // WebSockets use HTTP/1.1, and every server has it: 0.6 MB less
			flags += " -funcalign=8"                      // 32 leaves 0.23 MB empty between functions
		}
		args = append(args, "-ldflags="+flags)
		cmd := exec.Command("go", append(args, "./cmd/"+name)...)
		cmd.Dir, cmd.Stderr = r.root, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+t.system, "GOARCH="+t.processor)
		if err := cmd.Run(); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if t.String() == "linux_amd64" && len(data) > most[name] {
			return nil, fmt.Errorf("%s has %d bytes; want at most %d", name, len(data), most[name])
		}
		if t.system == "windows" {
			name += ".exe"
		}
		files = append(files, file{name, 0o755, data})
	}
	r.built[t] = slices.Clone(files)
	return files, nil
}

// manuals returns each program's manual page and shell completion, which the program
// itself prints.
func (r *release) manuals() (map[string][]file, error) {
	if r.printed != nil {
		return r.printed, nil
	}
	printed := map[string][]file{}
	for _, program := range programs {
		for _, one := range []struct {
			name string
			args []string
		}{
			{"man/" + program + ".1", []string{"man"}},
			{"completion/" + program + ".bash", []string{"completion", "bash"}},
			{"completion/_" + program, []string{"completion", "zsh"}},
			{"completion/" + program + ".fish", []string{"completion", "fish"}},
		} {
			text, err := output(r.root, "go", append([]string{"run", "./cmd/" + program}, one.args...)...)
			if err != nil {
				return nil, err
			}
			printed[program] = append(printed[program], file{one.name, 0o644, []byte(text + "\n")})
		}
	}
	r.printed = printed
	return printed, nil
}

// write adds a file to the output.
func (r *release) write(name string, data []byte) error {
	r.made = append(r.made, name)
	path := filepath.Join(r.out, name)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644))
}

func (r *release) name(program string, t target) string {
	return fmt.Sprintf("%s_%s_%v", program, r.version, t)
}

// archive writes a program's archive: a .zip for Windows, else a .tar.gz.
func (r *release) archive(program string, t target, files []file) error {
	name := r.name(program, t)
	if t.system == "windows" {
		return r.zip(name, files)
	}
	return r.writeTarGz(name+".tar.gz", name+"/", files)
}

// writeTarGz adds an archive of files to the output.
func (r *release) writeTarGz(name, prefix string, files []file) error {
	data, err := r.tarOf(prefix, files, 0)
	if err != nil {
		return err
	}
	packed, err := gzipped(data)
	if err != nil {
		return err
	}
	return r.write(name, packed)
}

// tarOf returns an archive of files with the given owner.
func (r *release) tarOf(prefix string, files []file, owner int) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		header := &tar.Header{Name: prefix + f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: r.when, Format: tar.FormatPAX, Uid: owner, Gid: owner}
		if strings.HasSuffix(f.name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close() // it writes the end
	return b.Bytes(), err
}

func gzipped(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

func (r *release) zip(name string, files []file) error {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		header := &zip.FileHeader{Name: name + "/" + f.name, Method: zip.Deflate, Modified: r.when}
		header.SetMode(os.FileMode(f.mode))
		one, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := one.Write(f.data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return r.write(name+".zip", b.Bytes())
}

// sums returns the SHA-256 of all output so far, in hex, by name.
func (r *release) sums() (map[string]string, error) {
	sums := map[string]string{}
	for _, name := range r.made {
		f, err := os.Open(filepath.Join(r.out, name))
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		sums[name] = hex.EncodeToString(sum.Sum(nil))
	}
	return sums, nil
}

// checksums writes the checksums of all output so far, in sha256sum's format.
func (r *release) checksums() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&b, "%s  %s\n", sums[name], name)
	}
	return r.write("SHA256SUMS", []byte(b.String()))
}
