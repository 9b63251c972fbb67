package ahprelay

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"strings"
	"testing"
)

// Bounds of the source, so that a type or a function that collects several ideas is divided.
const (
	mostMethods = 40
	mostLines   = 80 // of a function
)

// TestTypesAndFunctionsStaySmall counts the methods of each type and the lines of each function.
func TestTypesAndFunctionsStaySmall(t *testing.T) {
	dirs, err := productDirs()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0
	for _, dir := range dirs {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		methods := map[string]int{}
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path.Join(dir, f.Name()), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				if d, ok := d.(*ast.FuncDecl); ok {
					counted++
					methods[receiver(d)]++
					if lines := set.Position(d.End()).Line - set.Position(d.Pos()).Line + 1; lines > mostLines {
						t.Errorf("%s: %s has %d lines; want at most %d: divide it", set.Position(d.Pos()), d.Name.Name, lines, mostLines)
					}
				}
			}
		}
		delete(methods, "")
		for name, n := range methods {
			if n > mostMethods {
				t.Errorf("%s: %s has %d methods; want at most %d: divide the type", dir, name, n, mostMethods)
			}
		}
	}
	if counted < 4000 {
		t.Errorf("%d functions counted; want at least 4,000: is the source read at all?", counted)
	}
}

// receiver returns the name of a method's type, or "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	expr := d.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	if of, ok := expr.(*ast.IndexExpr); ok {
		expr = of.X
	}
	name, _ := expr.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}
