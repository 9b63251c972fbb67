package ahprelay

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPackagesWithoutTheRaceDetectorStartNoGoroutine checks the packages that make test runs
// without the race detector because they have nothing for it to find.
func TestPackagesWithoutTheRaceDetectorStartNoGoroutine(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^SINGLE +:= (.+)$`).FindSubmatch(makefile)
	if list == nil {
		t.Fatal("the Makefile has no list SINGLE")
	}
	for _, dir := range strings.Fields(string(list[1])) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no Go files (%v)", dir, err)
		}
		for _, name := range files {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if startsGoroutine(n) {
					t.Errorf("%s starts a goroutine; remove %s from SINGLE in the Makefile", set.Position(n.Pos()), dir)
				}
				return true
			})
		}
	}
}

// startsGoroutine recognizes a go statement, and the calls that start goroutines for a test.
func startsGoroutine(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.SelectorExpr:
		switch n.Sel.Name {
		case "Go", "Parallel", "RunParallel", "AfterFunc", "NewServer", "NewTLSServer":
			return true
		}
	}
	return false
}
