package ahprelay

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Bounds of the source, so that a type or a function that collects several ideas is divided.
const (
	mostMethods  = 40
	mostLines    = 80 // of a function
	mostBranches = 15 // a function's cyclomatic complexity, unless its comment explains its branches
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
			file, err := parser.ParseFile(set, path.Join(dir, f.Name()), nil, parser.ParseComments)
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
					if n := branches(d); n > mostBranches && !strings.Contains(d.Doc.Text(), "branch") {
						t.Errorf("%s: %s has the cyclomatic complexity %d; want at most %d, or a comment with the reason for its branches",
							set.Position(d.Pos()), d.Name.Name, n, mostBranches)
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
		t.Errorf("the test has found %d functions; want at least 4,000, because it must read the whole source", counted)
	}
}

// branches returns a function's cyclomatic complexity.
func branches(d *ast.FuncDecl) int {
	n := 1
	ast.Inspect(d, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if node.List != nil {
				n++
			}
		case *ast.CommClause:
			if node.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if node.Op == token.LAND || node.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
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

// word matches a word in a name. An abbreviation is a part of the word behind it.
var word = regexp.MustCompile(`[A-Z]+[a-z0-9]*`)

// TestNamesOfTestsArePromises fails on a test with a single word for its name: "Close" promises
// nothing, "ClosedConnectionIsNotResumed" does.
func TestNamesOfTestsArePromises(t *testing.T) {
	counted := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if name == "bin" { // make release copies libraries there
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.Name == "TestMain" || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			counted++
			if words := word.FindAllString(strings.TrimPrefix(f.Name.Name, "Test"), -1); len(words) < 2 {
				t.Errorf("%s: the name %s has less than two words; name what the test proves", set.Position(f.Pos()), f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if counted < 1500 {
		t.Errorf("the test has found %d tests; want at least 1,500, because it must read the whole source", counted)
	}
}
