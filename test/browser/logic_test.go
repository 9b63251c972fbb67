//go:build !race

package browser_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestConsoleLogic runs what the console does without a page in Node.js.
func TestConsoleLogic(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no Node.js on the PATH: the console's logic is tested in the browser only")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../gateway/console")); err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile("console.test.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"console.test.mjs": test,
		"package.json":     []byte(`{"type":"module"}`), // or Node.js takes .js for something older
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), node, "--test", "console.test.mjs")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("node --test: %v\n%s", err, out)
	}
}
