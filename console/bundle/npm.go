package bundle

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kept lists each package's bundled files and licences.
var kept = map[string][]string{
	"preact":           {"dist/preact.module.js", "hooks/dist/hooks.module.js", "jsx-runtime/dist/jsxRuntime.module.js", "LICENSE"},
	"marked":           {"lib/marked.esm.js", "LICENSE*"},
	"dompurify":        {"dist/purify.es.mjs", "LICENSE"},
	"diff":             {"libesm/diff/base.js", "libesm/diff/line.js", "libesm/util/*.js", "LICENSE"},
	"highlight.js":     append([]string{"lib/core.js", "LICENSE"}, languageFiles()...),
	"@xterm/xterm":     {"lib/xterm.mjs", "css/xterm.css", "LICENSE"},
	"@xterm/addon-fit": {"lib/addon-fit.mjs", "LICENSE"},
	"katex":            {"dist/katex.mjs", "LICENSE"},
	"@mermaid-js/tiny": {"dist/mermaid.tiny.js", "LICENSE"},
	"axe-core":         {"axe.min.js", "LICENSE"}, // for the tests
}

// languages lists the languages with syntax highlighting.
var languages = strings.Fields(`bash c cpp csharp css diff dockerfile go graphql ini java javascript json kotlin lua makefile
	markdown objectivec perl php plaintext powershell protobuf python r ruby rust scala scss sql swift typescript xml yaml`)

func languageFiles() []string {
	var files []string
	for _, l := range languages {
		files = append(files, "es/languages/"+l+".js")
	}
	return files
}

// GetLibraries downloads the packages in package-lock.json with npm and keeps the
// bundled files. npm verifies hashes and runs no scripts.
func GetLibraries(dir string) error {
	tmp, err := os.MkdirTemp("", "console-npm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := install(dir, tmp, os.Stdout, "--omit=dev"); err != nil {
		return err
	}
	target := filepath.Join(dir, "npm")
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	for pkg, patterns := range kept {
		from := filepath.Join(tmp, "node_modules", pkg)
		for _, pattern := range patterns {
			if err := copyMatching(from, filepath.Join(target, pkg), pattern); err != nil {
				return err
			}
		}
	}
	return nil
}

// install runs npm ci with dir's package-lock.json in the directory target.
func install(dir, target string, w io.Writer, more ...string) error {
	for _, name := range []string{"package.json", "package-lock.json"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(target, name), content, 0o644); err != nil {
			return err
		}
	}
	cmd := exec.Command("npm", append([]string{"ci", "--ignore-scripts", "--no-audit", "--no-fund"}, more...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = target, w, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm ci: %w", err)
	}
	return nil
}

func copyMatching(from, to, pattern string) error {
	names, err := fs.Glob(os.DirFS(from), pattern)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no %s", from, pattern)
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
