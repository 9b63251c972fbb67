package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// untyped matches a line of code with the type any, which disables the compiler's checks.
var untyped = regexp.MustCompile(`^\s*[^\s/*].*(?:[:<|&(]\s*|\bas\s+)any\b`)

// CheckSources returns an error for sources that import each other in a circle, and for
// sources with the type any. In a circle, dynamic imports and imports of types do not count.
func CheckSources(dir string) error {
	circles, err := circlesOf(dir, "src/main.tsx", "src/sw.ts")
	if err != nil {
		return err
	}
	var faults []error
	for _, circle := range circles {
		faults = append(faults, fmt.Errorf("imports in a circle: %s", strings.Join(circle, " → ")))
	}
	err = filepath.WalkDir(filepath.Join(dir, "src"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(filepath.Ext(name), ".ts") {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(content), "\n") {
			if untyped.MatchString(line) {
				faults = append(faults, fmt.Errorf("%s:%d: the type any: name the value's type, or unknown", name, i+1))
			}
		}
		return nil
	})
	return errors.Join(append(faults, err)...)
}

// circlesOf follows the imports from the entries. It returns a circle for each import that
// closes one.
func circlesOf(dir string, entries ...string) ([][]string, error) {
	o := options(dir)
	o.EntryPoints, o.Format, o.Splitting = entries, api.FormatESModule, true
	result := api.Build(o)
	if len(result.Errors) > 0 {
		return nil, errors.New(strings.Join(api.FormatMessages(result.Errors, api.FormatMessagesOptions{}), "\n"))
	}
	var meta struct {
		Inputs map[string]struct {
			Imports []struct{ Path, Kind string }
		}
	}
	if err := json.Unmarshal([]byte(result.Metafile), &meta); err != nil {
		return nil, err
	}
	var names []string
	imports := map[string][]string{}
	for name, input := range meta.Inputs {
		if !strings.HasPrefix(name, "src/") {
			continue // a library
		}
		names = append(names, name)
		for _, i := range input.Imports {
			if i.Kind == "import-statement" {
				imports[name] = append(imports[name], i.Path)
			}
		}
	}
	slices.Sort(names)
	return circlesAmong(names, imports), nil
}

func circlesAmong(names []string, imports map[string][]string) [][]string {
	var circles [][]string
	var path []string
	done := map[string]bool{}
	var visit func(string)
	visit = func(name string) {
		if at := slices.Index(path, name); at >= 0 {
			circles = append(circles, append(slices.Clone(path[at:]), name))
			return
		}
		if done[name] {
			return
		}
		path = append(path, name)
		for _, next := range imports[name] {
			visit(next)
		}
		path = path[:len(path)-1]
		done[name] = true
	}
	for _, name := range names {
		visit(name)
	}
	return circles
}
