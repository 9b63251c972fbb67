package console_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// native matches source text that uses the browser's own lists and dialogs. The console must not
// use them: they look different in each browser, and dialogs stop the page.
var native = regexp.MustCompile(`<(select|datalist)\b|createElement\(['"](select|datalist)|(^|[^.\w#])(confirm|alert|prompt)\(|window\.(confirm|alert|prompt)\(`)

// TestPagesUseNoNativeDialogs reads the sources of the console, and of the pages for sign-in and
// devices. No line may match native.
func TestPagesUseNoNativeDialogs(t *testing.T) {
	for text, want := range map[string]bool{"<select id=x>": true, "if (confirm('x'))": true, "window.prompt('x')": true, "<Select id=x>": false, "<selected>": false, "openPrompt(x)": false, "confirmed(x)": false, "app.confirm(x)": false} {
		if got := native.MatchString(text); got != want {
			t.Errorf("%s: found %v; want %v", text, got, want)
		}
	}
	files := 0
	for _, dir := range []string{"../src", "../frames", "../../gateway/api/people/pages"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.Contains(".ts .tsx .js .html", filepath.Ext(name)) || strings.Contains(name, "vendor") {
				return err
			}
			text, err := os.ReadFile(name)
			files++
			for i, line := range strings.Split(string(text), "\n") {
				if code, _, _ := strings.Cut(line, "//"); native.MatchString(code) {
					t.Errorf("%s:%d uses a native dialog: %s", name, i+1, strings.TrimSpace(line))
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 50 {
		t.Errorf("the check has read %d files; want at least 50", files)
	}
}
