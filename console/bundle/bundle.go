// Package bundle builds the web console's files from its sources and the libraries in
// console/npm. [Files] needs only Go, because esbuild is a Go library.
package bundle

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// libraries maps import names to files below npm/.
var libraries = map[string]string{
	"preact":             "preact/dist/preact.module.js",
	"preact/hooks":       "preact/hooks/dist/hooks.module.js",
	"preact/jsx-runtime": "preact/jsx-runtime/dist/jsxRuntime.module.js",
	"marked":             "marked/lib/marked.esm.js",
	"dompurify":          "dompurify/dist/purify.es.mjs",
	"diff":               "diff/libesm/diff/line.js",
	"katex":              "katex/dist/katex.mjs",
	"highlight.js/core":  "highlight.js/lib/core.js",
	"@xterm/xterm":       "@xterm/xterm/lib/xterm.mjs",
	"@xterm/addon-fit":   "@xterm/addon-fit/lib/addon-fit.mjs",
}

// globals maps frames to libraries that define a global variable instead of a module.
var globals = map[string]string{"diagram": "@mermaid-js/tiny/dist/mermaid.tiny.js"}

func options(dir string) api.BuildOptions {
	alias := map[string]string{}
	for name, file := range libraries {
		alias[name] = "./npm/" + file
	}
	for _, l := range languages {
		alias["highlight.js/"+l] = "./npm/highlight.js/es/languages/" + l + ".js"
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		abs = dir
	}
	return api.BuildOptions{
		AbsWorkingDir: abs, Outdir: filepath.Join(abs, "out"), Bundle: true, Write: false, Metafile: true,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, LegalComments: api.LegalCommentsNone,
		Charset: api.CharsetUTF8, Engines: []api.Engine{{Name: api.EngineChrome, Version: "111"}, {Name: api.EngineFirefox, Version: "113"}, {Name: api.EngineSafari, Version: "16.4"}},
		JSX: api.JSXAutomatic, JSXImportSource: "preact", Alias: alias, Tsconfig: filepath.Join(abs, "tsconfig.json"), LogLevel: api.LogLevelSilent,
	}
}

// Files bundles the console in directory dir and returns its files by name.
func Files(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	names := map[string]string{} // source file to its bundle; with .css to its style, with .parts to links for preloading
	worker := options(dir)
	worker.EntryPoints = []string{"src/highlight-worker.ts"}
	worker.Format = api.FormatIIFE
	worker.EntryNames = "[name]-[hash]"
	if err := add(worker, files, names); err != nil {
		return nil, err
	}
	page := options(dir)
	page.EntryPoints = []string{"src/main.tsx"}
	page.Format, page.Splitting = api.FormatESModule, true
	page.EntryNames, page.ChunkNames = "[name]-[hash]", "[name]-[hash]"
	page.Define = map[string]string{"HIGHLIGHT_WORKER": quote("/" + names["src/highlight-worker.ts"])}
	if err := add(page, files, names); err != nil {
		return nil, err
	}
	if err := frames(dir, files); err != nil {
		return nil, err
	}
	for _, name := range []string{"terminal", "math", "diagram"} {
		if err := sandboxed(dir, name, files); err != nil {
			return nil, err
		}
	}
	if err := index(dir, files, names); err != nil {
		return nil, err
	}
	var err error
	if files["keys.js"], err = os.ReadFile(filepath.Join(dir, "..", "gateway", "api", "people", "pages", "keys.js")); err != nil {
		return nil, err
	}
	return files, serviceWorker(dir, files)
}

// add runs a bundle and records its output files and names.
func add(o api.BuildOptions, files map[string][]byte, names map[string]string) error {
	result := api.Build(o)
	if len(result.Errors) > 0 {
		return errors.New(strings.Join(api.FormatMessages(result.Errors, api.FormatMessagesOptions{}), "\n"))
	}
	for _, f := range result.OutputFiles {
		name, err := filepath.Rel(o.Outdir, f.Path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)] = f.Contents
	}
	var meta struct {
		Outputs map[string]struct {
			EntryPoint string `json:"entryPoint"`
			CSSBundle  string `json:"cssBundle"`
			Imports    []struct{ Path, Kind string }
		} `json:"outputs"`
	}
	if err := json.Unmarshal([]byte(result.Metafile), &meta); err != nil {
		return err
	}
	for out, m := range meta.Outputs {
		if m.EntryPoint != "" {
			names[m.EntryPoint] = path.Base(out)
			for _, i := range m.Imports {
				if i.Kind == "import-statement" { // code that the entry shares with modules that load later
					names[m.EntryPoint+".parts"] += "  <link rel=\"modulepreload\" href=\"/" + path.Base(i.Path) + "\">\n"
				}
			}
		}
		if m.CSSBundle != "" {
			names[m.EntryPoint+".css"] = path.Base(m.CSSBundle)
		}
	}
	return nil
}

func quote(s string) string {
	q, _ := json.Marshal(s) // a string always marshals
	return string(q)
}

// frames adds the files in the directory frames, which are served unchanged.
func frames(dir string, files map[string][]byte) error {
	root := filepath.Join(dir, "frames")
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)], err = os.ReadFile(name)
		return err
	})
}

// sandboxed builds the page of a frame, such as a terminal's. The page has its own origin
// and can load nothing, so it contains its script and style.
func sandboxed(dir, name string, files map[string][]byte) error {
	o := options(dir)
	o.EntryPoints = []string{"src/" + name + "-frame.ts"}
	o.Format = api.FormatIIFE
	made, names := map[string][]byte{}, map[string]string{}
	if err := add(o, made, names); err != nil {
		return err
	}
	script, style := made[names["src/"+name+"-frame.ts"]], made[names["src/"+name+"-frame.ts.css"]]
	if bytes.Contains(bytes.ToLower(script), []byte("</script")) || bytes.Contains(bytes.ToLower(style), []byte("</style")) {
		return errors.New(name + ": the script or style contains its own end tag")
	}
	html, err := os.ReadFile(filepath.Join(dir, "src", name+".html"))
	if err != nil {
		return err
	}
	if file, ok := globals[name]; ok {
		library, err := os.ReadFile(filepath.Join(dir, "npm", filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		html = bytes.Replace(html, []byte("/*LIBRARY*/"), bytes.ReplaceAll(library, []byte("</script"), []byte(`<\/script`)), 1)
	}
	html = bytes.Replace(html, []byte("/*STYLE*/"), style, 1)
	files[name+".html"] = bytes.Replace(html, []byte("/*SCRIPT*/"), script, 1)
	return nil
}

func index(dir string, files map[string][]byte, names map[string]string) error {
	html, err := os.ReadFile(filepath.Join(dir, "src", "index.html"))
	if err != nil {
		return err
	}
	text := strings.ReplaceAll(string(html), "main.css", names["src/main.tsx.css"])
	text = strings.Replace(text, "</head>", names["src/main.tsx.parts"]+"</head>", 1)
	files["index.html"] = []byte(strings.ReplaceAll(text, "main.js", names["src/main.tsx"]))
	return nil
}

var hashed = regexp.MustCompile(`-[A-Z0-9]{8}\.(js|css)$`)

// serviceWorker builds sw.js, which caches the page and its parts. Of the translations,
// sw.js caches only the languages in use.
func serviceWorker(dir string, files map[string][]byte) error {
	catalogues, err := fs.Glob(os.DirFS(filepath.Join(dir, "src", "language")), "??.ts")
	if err != nil {
		return err
	}
	var shell []string
	tongues := map[string]string{}
	for name := range files {
		if !hashed.MatchString(name) { // only hashed names are cached: other files may change
			continue
		}
		if tag, _, _ := strings.Cut(name, "-"); slices.Contains(catalogues, tag+".ts") {
			tongues[tag] = "/" + name
		} else {
			shell = append(shell, "/"+name)
		}
	}
	slices.Sort(shell)
	list, err := json.Marshal(shell)
	if err != nil {
		return err
	}
	tongueList, err := json.Marshal(tongues)
	if err != nil {
		return err
	}
	o := options(dir)
	o.EntryPoints = []string{"src/sw.ts"}
	o.Format = api.FormatIIFE
	// pages/keys.js, which sw.js contains, finds the relay through its own address in
	// import.meta.url. In a service worker, that is self.location.href.
	o.Define = map[string]string{"SHELL": string(list), "LANGUAGES": string(tongueList), "import.meta.url": "self.location.href"}
	return add(o, files, map[string]string{})
}

// packedTypes lists the types to compress. Other files are small or already
// compressed.
var packedTypes = []string{".js", ".css", ".html", ".svg", ".webmanifest"}

// Pack returns the name and content to store for a file.
func Pack(name string, content []byte) (string, []byte, error) {
	if !slices.Contains(packedTypes, path.Ext(name)) || len(content) < 512 {
		return name, content, nil
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return "", nil, err
	}
	if _, err := w.Write(content); err != nil {
		return "", nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := w.Close(); err != nil {
		return "", nil, fmt.Errorf("%s: %w", name, err)
	}
	return name + ".gz", b.Bytes(), nil
}

// Test bundles a test file into a program for Node.js.
func Test(dir, file string) ([]byte, error) {
	o := options(dir)
	o.EntryPoints = []string{file}
	o.Format, o.Platform = api.FormatESModule, api.PlatformNode
	o.MinifyWhitespace, o.MinifyIdentifiers, o.MinifySyntax, o.Engines = false, false, false, nil
	o.Define = map[string]string{"HIGHLIGHT_WORKER": quote("/worker.js")}
	files, names := map[string][]byte{}, map[string]string{}
	if err := add(o, files, names); err != nil {
		return nil, err
	}
	return files[names[file]], nil
}
