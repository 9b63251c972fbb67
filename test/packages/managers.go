package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// registry serves the release's npm packages as an npm registry does. npm requests the
// description of each package, and then the files that the description names.
func registry(dist string) (url string, end func(), err error) {
	packages, err := filepath.Glob(filepath.Join(dist, "npm/*.tgz"))
	if err != nil || len(packages) == 0 {
		return "", nil, fmt.Errorf("no npm packages in %s: %v", dist, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	url = "http://" + listener.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(filepath.Join(dist, "npm")))))
	for _, path := range packages {
		about, err := describe(path)
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", path, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return "", nil, err
		}
		sum := sha512.Sum512(data)
		about["dist"] = map[string]string{"tarball": url + "/files/" + filepath.Base(path), "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
		version := about["version"].(string)
		text, err := json.Marshal(map[string]any{"name": about["name"], "dist-tags": map[string]string{"latest": version}, "versions": map[string]any{version: about}})
		if err != nil {
			return "", nil, err
		}
		mux.HandleFunc("/"+about["name"].(string), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text)
		})
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }()
	return url, func() { _ = server.Close() }, nil
}

// describe returns the content of an npm package's package.json.
func describe(path string) (about map[string]any, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(unzipped); ; {
		head, err := files.Next()
		if err != nil {
			return nil, fmt.Errorf("no package.json: %w", err)
		}
		if head.Name == "package/package.json" {
			return about, json.NewDecoder(files).Decode(&about)
		}
	}
}

// checkNPM runs the programs with npx, from a registry on loopback. Each program must
// get its arguments, and npx must return its exit status.
func checkNPM(dist, work string) error {
	url, end, err := registry(dist)
	if err != nil {
		return err
	}
	defer end()
	home := filepath.Join(work, "npm")
	if err := errors.Join(os.RemoveAll(home), os.MkdirAll(home, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(home)
	npx := func(args ...string) (string, error) {
		return say("env", append([]string{"-C", home, "HOME=" + home, "npm_config_registry=" + url, "npm_config_cache=" + filepath.Join(home, "cache"), "npm_config_update_notifier=false", "npx", "--yes"}, args...)...)
	}
	for name, program := range map[string]string{"ahp-host-agent": "host-agent", "ahp-connect": "ahp-connect"} {
		said, err := npx(name, "--version")
		if err != nil || !strings.HasPrefix(said, program+" ") {
			return fmt.Errorf("npx %s --version prints %q, %v; want the version of %s", name, said, err, program)
		}
		if said, err := npx(name, "no-such-command"); err == nil {
			return fmt.Errorf("npx %s no-such-command succeeds: %s", name, said)
		}
		log.Print("npx ", name, ": ", said)
	}
	installed, err := filepath.Glob(filepath.Join(home, "cache/_npx/*/node_modules/ahp-*"))
	if err != nil || len(installed) != 4 {
		return fmt.Errorf("npx installed %v, %v; want two packages, and this system's of each", installed, err)
	}
	return nil
}

// brew imitates Homebrew on Linux: it evaluates a formula, checks the download and
// installs below a folder. It lacks methods that a formula must not call.
const brew = `
require "digest"; require "fileutils"; require "open3"
class Formula
  class << self
    attr_reader :said
    def self.words(*names) = names.each { |n| define_method(n) { |v| (@said ||= {})[n] = v } }
    words :desc, :homepage, :license
    def version(v = nil) = v ? (@version = v) : @version
    def url(u) = (@url = u)
    def sha256(s) = (@sum = s)
    def on_macos = nil
    def on_linux = yield
    def on_intel = yield
    def on_arm = nil
    def test(&b) = (@test = b)
    def found = [@url, @sum, @test]
  end
  class Place
    def initialize(dir) = FileUtils.mkdir_p(@dir = dir)
    def install(what)
      what = {what => File.basename(what)} unless what.is_a?(Hash)
      what.each { |from, to| raise "#{from} is not there" unless File.file?(from); FileUtils.cp(from, File.join(@dir, to)) }
    end
    def to_s = @dir
  end
  def initialize(prefix) = @prefix = prefix
  {bin: "bin", man1: "share/man/man1", bash_completion: "etc/bash_completion.d", zsh_completion: "share/zsh/site-functions", fish_completion: "share/fish/vendor_completions.d"}
    .each { |name, dir| define_method(name) { Place.new(File.join(@prefix, dir)) } }
  def version = self.class.version
  def shell_output(command) = Open3.capture2(command).then { |out, status| status.success? ? out : raise("#{command}: #{status}") }
  def assert_match(want, got) = got.include?(want) || raise("#{got} lacks #{want}")
end
file, dist, prefix = ARGV
load file
formula = ObjectSpace.each_object(Class).find { |c| c < Formula }
url, sum, test = formula.found
archive = File.join(dist, File.basename(url))
raise "#{archive} has another checksum" unless Digest::SHA256.file(archive).hexdigest == sum
Dir.mktmpdir { |dir| system("tar", "-xzf", archive, "-C", dir, "--strip-components=1") || raise("tar"); Dir.chdir(dir) { formula.new(prefix).install } } if require "tmpdir"
formula.new(prefix).instance_eval(&test)
puts "brew: #{formula} #{formula.version}: #{formula.said[:desc]}"
`

// checkBrew installs each program from its formula, with Ruby and brew.
func checkBrew(dist, work string) error {
	formulas, err := filepath.Glob(filepath.Join(dist, "homebrew/Formula/*.rb"))
	if err != nil || len(formulas) != 3 {
		return fmt.Errorf("the formulas are %v, %v; want 3", formulas, err)
	}
	script := filepath.Join(work, "brew.rb")
	if err := os.WriteFile(script, []byte(brew), 0o644); err != nil {
		return err
	}
	for _, formula := range formulas {
		said, err := say("ruby", script, formula, dist, filepath.Join(work, "brew"))
		if err != nil {
			return err
		}
		log.Print(said)
	}
	return nil
}

// checkScoop checks each Scoop manifest: its archives are in the release and have the
// named checksums, and each contains the named program.
func checkScoop(dist string) error {
	manifests, err := filepath.Glob(filepath.Join(dist, "scoop/bucket/*.json"))
	if err != nil {
		return err
	}
	for _, path := range manifests {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var manifest struct {
			Version, Bin string
			Architecture map[string]struct {
				URL, Hash string
				Folder    string `json:"extract_dir"`
			}
		}
		if err := json.Unmarshal(text, &manifest); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for processor, one := range manifest.Architecture {
			archive := filepath.Join(dist, filepath.Base(one.URL))
			f, err := os.Open(archive)
			if err != nil {
				return err
			}
			sum := sha256.New()
			_, err = io.Copy(sum, f)
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			if got := fmt.Sprintf("%x", sum.Sum(nil)); got != one.Hash {
				return fmt.Errorf("%s: %s: checksum %s; want %s", path, processor, one.Hash, got)
			}
			z, err := zip.OpenReader(archive)
			if err != nil {
				return err
			}
			_, err = z.Open(one.Folder + "/" + manifest.Bin)
			if err = errors.Join(err, z.Close()); err != nil {
				return fmt.Errorf("%s: %w", archive, err)
			}
		}
		log.Print("scoop: ", filepath.Base(path), " fits its archives")
	}
	return nil
}
