package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// offered describes the programs for package managers, where each has the prefix ahp-.
var offered = []struct {
	program, name, about, hint string
	npm                        bool // people run it with npx
}{
	{"host-agent", "ahp-host-agent", "Makes this machine's coding agents reachable through a self-hosted relay", "up https://YOUR-RELAY", true},
	{"ahp-connect", "ahp-connect", "Serves the hosts of your relays to programs on this machine", "login https://YOUR-RELAY", true},
	{"relay", "ahp-relay", "Self-hosted relay for the Agent Host Protocol", "serve", false},
}

// managers writes what package managers need to install this release's archives.
func (r *release) managers() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	for _, one := range offered {
		if err := r.formula(one.program, one.name, one.about, sums); err != nil {
			return err
		}
		if err := r.scoop(one.program, one.name, one.about, sums); err != nil {
			return err
		}
		if !one.npm {
			continue
		}
		if err := r.npm(one.program, one.name, one.about, one.hint); err != nil {
			return err
		}
	}
	return nil
}

// download is an archive at its public address.
type download struct{ Processor, URL, Sum string }

// downloads returns the archives of a program for a system.
func (r *release) downloads(program, system, ending string, sums map[string]string) (list []download) {
	for _, t := range targets {
		if name := r.name(program, t) + ending; t.system == system && sums[name] != "" {
			list = append(list, download{t.processor, r.owner["VERSIONS"] + "/v" + r.version + "/" + name, sums[name]})
		}
	}
	return list
}

var formula = template.Must(template.New("formula").Parse(`class {{.Class}} < Formula
  desc "{{.About}}"
  homepage "{{.Source}}"
  version "{{.Version}}"
  license "Apache-2.0"
{{range .Systems}}
  on_{{.Name}} do
{{- range .Downloads}}
    on_{{if eq .Processor "arm64"}}arm{{else}}intel{{end}} do
      url "{{.URL}}"
      sha256 "{{.Sum}}"
    end
{{- end}}
  end
{{end}}
  def install
    bin.install "{{.Program}}"
    man1.install "man/{{.Program}}.1"
    bash_completion.install "completion/{{.Program}}.bash" => "{{.Program}}"
    zsh_completion.install "completion/_{{.Program}}"
    fish_completion.install "completion/{{.Program}}.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/{{.Program}} --version")
  end
end
`))

// formula writes a formula for Homebrew, on macOS and Linux.
func (r *release) formula(program, name, about string, sums map[string]string) error {
	type system struct {
		Name      string
		Downloads []download
	}
	var systems []system
	for _, s := range [][2]string{{"macos", "darwin"}, {"linux", "linux"}} {
		if list := r.downloads(program, s[1], ".tar.gz", sums); len(list) > 0 {
			systems = append(systems, system{s[0], list})
		}
	}
	var class strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		class.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	var b bytes.Buffer
	err := formula.Execute(&b, map[string]any{
		"Class": class.String(), "Program": program, "About": about, "Source": r.owner["SOURCE"], "Version": r.version, "Systems": systems,
	})
	if err != nil {
		return err
	}
	return r.write("homebrew/Formula/"+name+".rb", b.Bytes())
}

// scoop writes a manifest for Scoop, on Windows.
func (r *release) scoop(program, name, about string, sums map[string]string) error {
	list := r.downloads(program, "windows", ".zip", sums)
	if len(list) == 0 {
		return nil
	}
	type place struct {
		URL    string `json:"url"`
		Hash   string `json:"hash,omitempty"`
		Folder string `json:"extract_dir"`
	}
	now, next := map[string]place{}, map[string]place{}
	for _, d := range list {
		processor := map[string]string{"amd64": "64bit", "arm64": "arm64"}[d.Processor]
		folder := r.name(program, target{"windows", d.Processor})
		now[processor] = place{d.URL, d.Sum, folder}
		next[processor] = place{strings.ReplaceAll(d.URL, r.version, "$version"), "", strings.ReplaceAll(folder, r.version, "$version")}
	}
	text, err := json.MarshalIndent(map[string]any{
		"version": r.version, "description": about, "homepage": r.owner["SOURCE"], "license": "Apache-2.0",
		"architecture": now, "bin": program + ".exe",
		"checkver":   map[string]string{"url": r.owner["LATEST"] + "/SHA256SUMS", "regex": program + `_(\d[\w.-]*)_windows_amd64\.zip`},
		"autoupdate": map[string]any{"architecture": next, "hash": map[string]string{"url": "$baseurl/SHA256SUMS"}},
	}, "", "    ")
	if err != nil {
		return err
	}
	return r.write("scoop/bucket/"+name+".json", append(text, '\n'))
}

// nodeNames are Node.js' names for systems and processors.
var nodeNames = map[string]string{"windows": "win32", "amd64": "x64"}

func nodeName(name string) string { return cmp.Or(nodeNames[name], name) }

// npm writes the npm packages of a program: one for each target with the program, and
// one that starts it, with the others as optional dependencies. npm installs only the
// package that fits the machine.
func (r *release) npm(program, name, about, hint string) error {
	common := func(name string) map[string]any {
		return map[string]any{
			"name": name, "version": r.version, "description": about, "license": "Apache-2.0", "homepage": r.owner["SOURCE"],
			"repository": map[string]string{"type": "git", "url": "git+" + r.owner["SOURCE"]},
		}
	}
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	parts := map[string]string{}
	for _, t := range targets {
		files, err := r.build(t)
		if err != nil {
			return err
		}
		system, processor := nodeName(t.system), nodeName(t.processor)
		part := name + "-" + system + "-" + processor
		parts[part] = r.version
		about := common(part)
		about["os"], about["cpu"], about["preferUnplugged"] = []string{system}, []string{processor}, true
		for _, f := range files {
			if strings.TrimSuffix(f.name, ".exe") == program {
				f.name = "bin/" + f.name
				if err := r.npmPackage(about, f, file{"LICENSE", 0o644, licence}); err != nil {
					return err
				}
			}
		}
	}
	start, err := os.ReadFile(filepath.Join(r.root, "packaging/npm/start.cjs"))
	if err != nil {
		return err
	}
	main := common(name)
	main["bin"], main["optionalDependencies"] = map[string]string{name: "start.cjs"}, parts
	main["engines"], main["ahpProgram"] = map[string]string{"node": ">=18"}, program
	readme := fmt.Sprintf("# %s\n\n%s.\n\n    npx %s %s\n\nThe install script and the other packages are better for a service, which needs a lasting path: see %s\n", name, about, name, hint, r.owner["SOURCE"])
	return r.npmPackage(main, file{"start.cjs", 0o755, start}, file{"README.md", 0o644, []byte(readme)}, file{"LICENSE", 0o644, licence})
}

func (r *release) npmPackage(about map[string]any, files ...file) error {
	text, err := json.MarshalIndent(about, "", "  ")
	if err != nil {
		return err
	}
	files = append([]file{{"package.json", 0o644, append(text, '\n')}}, files...)
	return r.writeTarGz(fmt.Sprintf("npm/%s-%s.tgz", about["name"], r.version), "package/", files)
}
