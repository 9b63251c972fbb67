package document

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplaceKeepsTheTextAround(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.md")
	const begins, ends = "<!-- make x writes from here -->\n", "<!-- to here -->\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a\n" + begins + "old\n" + ends + "b\n")
	for range 2 {
		if err := Replace(file, "make x", []byte("new\n")); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := os.ReadFile(file); string(got) != "a\n"+begins+"\nnew\n\n"+ends+"b\n" {
		t.Errorf("the file is %q; want the new text between the marks", got)
	}
	for _, text := range []string{"a\n" + begins, "a\n" + ends} {
		write(text)
		if Replace(file, "make x", nil) == nil {
			t.Errorf("Replace writes the text %q, which lacks a mark; want an error", text)
		}
	}
}
