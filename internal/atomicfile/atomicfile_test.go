package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFailedReplaceLeavesTheFormerContent replaces a file twice, each time with the new content and
// mode. A directory cannot be replaced: this must return an error, and leave no temporary file.
func TestFailedReplaceLeavesTheFormerContent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for _, text := range []string{"one", "two"} {
		if err := Replace(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != text || info.Mode().Perm() != 0o640 {
			t.Errorf("the file has %q, %v, %v; want %q with mode 0640", got, info, err, text)
		}
	}
	if err := Create(path, []byte("three"), 0o600); !os.IsExist(err) {
		t.Errorf("Create: %v; want that the file exists", err)
	}
	below := filepath.Join(dir, "b", "c")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Dir(below), []byte("x"), 0o600); err == nil {
		t.Error("Replace has replaced a directory; want an error")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("the directory has %v, %v; want a and b without a temporary file", left, err)
	}
}
