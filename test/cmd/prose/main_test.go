package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checkoutOf makes a git repository with these files, and returns its directory.
func checkoutOf(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}} {
		if out, err := exec.Command("git", append([]string{"-C", root}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return root
}

// pond is a Go package. The documents and comments in the tests name its identifiers.
const pond = "package pond\n\n// A Duck swims.\ntype Duck struct{ Age int }\n\n// Feed feeds the duck.\nfunc (d *Duck) Feed() {}\n"

func TestUnknownNamesAreReported(t *testing.T) {
	var out strings.Builder
	root := checkoutOf(t, map[string]string{
		"pond/pond.go":      pond,
		"pond/pond_test.go": "package pond\n\nfunc TestDuckSwims(t *testing.T) {}\n",
		"pond/more.go":      "package pond\n\n// fly differs from [Duck.Feed] and [Duck.Fly], see TestDuckFlies, pond.Goose and [Swan].\nfunc fly() {}\n",
		"README.md":         "See `pond.Duck`, `pond.Swan`, `Duck.Feed`, `Duck.Wings`, `pond/pond.go`, `pond/lake.go`, `TestDuckSwims` and `TestDuckSinks`.\n",
	})
	err := run([]string{"--check", root}, &out)
	if err == nil {
		t.Error("--check passes; want an error")
	}
	for _, want := range []string{
		"pond/more.go:3: [Duck.Fly]", "pond/more.go:3: TestDuckFlies", "pond/more.go:3: pond.Goose", "pond/more.go:3: [Swan]",
		"README.md: pond.Swan", "README.md: Duck.Wings", "README.md: pond/lake.go", "README.md: TestDuckSinks",
	} {
		if !strings.Contains(out.String(), want+" does not exist\n") {
			t.Errorf("the unknown name %s is not reported; want it reported", want)
		}
	}
	if got := strings.Count(out.String(), "does not exist"); got != 8 {
		t.Errorf("%d names are reported; want 8:\n%s", got, &out)
	}
}

func TestProseAboveItsBoundIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		good bool
	}{
		"plain":   {"// Feed gives the duck bread until the duck is full.\nfunc Feed() {}\n", true},
		"unclear": {"// Feed says what nobody told the one whose other it is that is fed of it.\nfunc Feed() {}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run([]string{"--check", checkoutOf(t, map[string]string{"pond/pond.go": "package pond\n\n" + c.text})}, &out)
			if (err == nil) != c.good {
				t.Errorf("--check returns %v; want good = %v\n%s", err, c.good, &out)
			}
		})
	}
}

func TestWorstSentenceComesFirst(t *testing.T) {
	var out strings.Builder
	root := checkoutOf(t, map[string]string{"README.md": "The relay carries frames to its clients. Nobody says what it is that others are told of.\n"})
	if err := run([]string{"--worst", "1", root}, &out); err != nil {
		t.Fatal(err)
	}
	if want := "README.md:1: Nobody says"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("--worst 1 prints %q; want %q first", &out, want)
	}
}
