// Package console_test tests console code that needs no page.
package console_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"ahprelay/console/bundle"
	"ahprelay/console/site"
)

// TestConsolesScriptsPass runs the tests in *.test.ts with Node.js.
func TestConsolesScriptsPass(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no Node.js on the PATH: the console's logic is tested in the browser only")
	}
	files, err := filepath.Glob("*.test.ts")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no tests of the console: %v", err)
	}
	dir := t.TempDir()
	args := []string{"--test"}
	for _, file := range files {
		program, err := bundle.Test("..", "test/"+file)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, file+".mjs")
		if err := os.WriteFile(path, program, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	if out, err := exec.CommandContext(t.Context(), node, args...).CombinedOutput(); err != nil {
		t.Fatalf("node --test: %v\n%s", err, out)
	}
}

// TestDistIsBuilt builds the console, and fails if the files in console/dist differ.
func TestDistIsBuilt(t *testing.T) {
	t.Parallel()
	made, err := bundle.Files("..")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for name, content := range made {
		stored, packed, err := bundle.Pack(name, content)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, stored)
		got, err := os.ReadFile(filepath.Join("..", "dist", filepath.FromSlash(stored)))
		if err != nil {
			t.Errorf("%v; go run ./console/build writes it", err)
		} else if !bytes.Equal(got, packed) {
			t.Errorf("dist/%s differs from the sources; run go run ./console/build", stored)
		}
	}
	err = fs.WalkDir(os.DirFS(filepath.Join("..", "dist")), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !slices.Contains(want, name) {
			t.Errorf("the build does not make dist/%s; run go run ./console/build to remove it", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// firstLoad bounds the number of bytes that a browser downloads before it paints the page.
const firstLoad = 130_000

// TestFirstLoadIsSmall fails if a browser needs more than firstLoad bytes before it paints the
// page.
func TestFirstLoadIsSmall(t *testing.T) {
	t.Parallel()
	files, size, err := site.FirstLoad()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes in %d files", size, files)
	if size > firstLoad || files < 2 {
		t.Errorf("the page loads %d bytes in %d files before it shows anything; want at most %d bytes", size, files, firstLoad)
	}
}
