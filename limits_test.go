package ahprelay

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	limitName = regexp.MustCompile("`([a-z-]+)\\.([A-Za-z]+)(?:\\.([A-Za-z]+))?`")
	figure    = regexp.MustCompile(`(\d[\d,]*)(?:/(\d+))?(?: (KiB|MiB|GiB|ms|s|min|h)\b)?`)
)

var units = map[string]float64{
	"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	"ms": float64(time.Millisecond), "s": float64(time.Second), "min": float64(time.Minute), "h": float64(time.Hour),
}

// TestLimitsOfDocument compares the figures in docs/limits.md with the constants and defaults that their rows name.
func TestLimitsOfDocument(t *testing.T) {
	const document = "docs/limits.md"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := productDirs()
	if err != nil {
		t.Fatal(err)
	}
	s := sources{}
	checked := 0
	for i, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 4 || cells[2] == "set by" {
			continue
		}
		names := limitName.FindAllStringSubmatch(cells[2], -1)
		if len(names) == 0 && cells[2] != "Go's default" {
			t.Errorf("%s:%d: the column \"set by\" names no constant: want `package.constant` or `package.Type.Field`", document, i+1)
		}
		figures := figuresIn(cells[0] + " " + cells[1] + " " + cells[3])
		for _, name := range names {
			values, err := s.named(dirs, name[1], name[2], name[3])
			if err != nil {
				t.Errorf("%s:%d: %s: %v; if it was renamed or moved, correct the row", document, i+1, name[0], err)
				continue
			}
			for _, v := range values {
				checked++
				if !slices.Contains(figures, v) {
					t.Errorf("%s:%d: %s is %s in the source (bytes, nanoseconds or a count), but its row has no such figure: correct the row (%q)", document, i+1, name[0], strconv.FormatFloat(v, 'f', -1, 64), cells[1])
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("the test has compared %d constants; want at least 100, because it must read the whole table", checked)
	}
}

// productDirs returns all directories that may contain product code.
func productDirs() (dirs []string, err error) {
	err = filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if slices.Contains([]string{".git", "bin", "dist", "docs", "node_modules", "npm", "packaging", "test", "testdata"}, d.Name()) {
			return fs.SkipDir
		}
		dirs = append(dirs, filepath.ToSlash(p))
		return nil
	})
	return dirs, err
}

// figuresIn returns the numbers in a text, in bytes and nanoseconds if they have such a unit.
func figuresIn(text string) (list []float64) {
	for _, m := range figure.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
		if m[2] != "" {
			of, _ := strconv.ParseFloat(m[2], 64)
			n /= of
		}
		list = append(list, n*units[m[3]])
	}
	return list
}

// sources are parsed packages by directory.
type sources map[string]*limitsPackage

// A limitsPackage is a package's product code.
type limitsPackage struct {
	values  map[string]ast.Expr // of constants and variables
	funcs   []*ast.FuncDecl     // that may set defaults
	imports map[string]string   // directories of this module by package name
}

func (s sources) load(dir string) (*limitsPackage, error) {
	if p := s[dir]; p != nil {
		return p, nil
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	p := &limitsPackage{values: map[string]ast.Expr{}, imports: map[string]string{}}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path.Join(dir, f.Name()), nil, 0)
		if err != nil {
			return nil, err
		}
		for _, i := range file.Imports {
			if local, ok := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), "ahprelay/"); ok {
				p.imports[path.Base(local)] = local
			}
		}
		for _, d := range file.Decls {
			p.declare(d)
		}
	}
	s[dir] = p
	return p, nil
}

func (p *limitsPackage) declare(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		p.funcs = append(p.funcs, d)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) == len(v.Names) {
				for i, name := range v.Names {
					p.values[name.Name] = v.Values[i]
				}
			}
		}
	}
}

// named returns the values of a constant, a variable, or the default of a field if field is not "". The package is the
// one with that directory name which declares it.
func (s sources) named(dirs []string, pkg, name, field string) (values []float64, err error) {
	for _, dir := range dirs {
		if path.Base(dir) != pkg {
			continue
		}
		p, err := s.load(dir)
		if err != nil {
			return nil, err
		}
		expr := p.values[name]
		if field != "" {
			expr = p.defaultOf(name, field)
		}
		if expr == nil {
			continue
		}
		if values != nil {
			return nil, fmt.Errorf("several packages with the name %s declare this constant", pkg)
		}
		if values, err = s.eval(p, expr); err != nil {
			return nil, err
		}
	}
	if values == nil {
		return nil, fmt.Errorf("no package with the name %s declares this constant, or sets it in a method of that type", pkg)
	}
	return values, nil
}

// defaultOf returns the default that a method of a type sets for a field: by x.Field = value or x.Field = cmp.Or(x.Field,
// value).
func (p *limitsPackage) defaultOf(name, field string) (expr ast.Expr) {
	isField := func(e ast.Expr) bool {
		sel, ok := e.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == field
	}
	for _, f := range p.funcs {
		if f.Recv == nil || !isType(f.Recv.List[0].Type, name) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n, ok := n.(*ast.AssignStmt); ok && len(n.Lhs) == 1 && isField(n.Lhs[0]) {
				expr = n.Rhs[0]
				if or, ok := expr.(*ast.CallExpr); ok && len(or.Args) == 2 && isField(or.Args[0]) {
					expr = or.Args[1]
				}
			}
			return expr == nil
		})
	}
	return expr
}

func isType(e ast.Expr, name string) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// eval computes literals, arithmetic, durations, references to constants, and all elements of composite literals.
func (s sources) eval(p *limitsPackage, e ast.Expr) ([]float64, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if n, err := strconv.ParseInt(e.Value, 0, 64); err == nil {
			return []float64{float64(n)}, nil
		}
		n, err := strconv.ParseFloat(e.Value, 64)
		return []float64{n}, err
	case *ast.ParenExpr:
		return s.eval(p, e.X)
	case *ast.KeyValueExpr:
		return s.eval(p, e.Value)
	case *ast.CompositeLit:
		var list []float64
		for _, element := range e.Elts {
			values, err := s.eval(p, element)
			if err != nil {
				return nil, err
			}
			list = append(list, values...)
		}
		return list, nil
	case *ast.Ident:
		if p.values[e.Name] == nil {
			return nil, fmt.Errorf("%s is not declared", e.Name)
		}
		return s.eval(p, p.values[e.Name])
	case *ast.SelectorExpr:
		return s.selected(p, e)
	case *ast.BinaryExpr:
		return s.binary(p, e)
	}
	return nil, fmt.Errorf("a value of the form %T is not supported by limits_test.go", e)
}

var durations = map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}

func (s sources) selected(p *limitsPackage, e *ast.SelectorExpr) ([]float64, error) {
	from, _ := e.X.(*ast.Ident)
	switch {
	case from != nil && from.Name == "time" && durations[e.Sel.Name] != 0:
		return []float64{float64(durations[e.Sel.Name])}, nil
	case from != nil && p.imports[from.Name] != "":
		return s.named([]string{p.imports[from.Name]}, path.Base(p.imports[from.Name]), e.Sel.Name, "")
	}
	return nil, fmt.Errorf("%s cannot be evaluated", e.Sel.Name)
}

func (s sources) binary(p *limitsPackage, e *ast.BinaryExpr) ([]float64, error) {
	x, err := s.eval(p, e.X)
	if err != nil {
		return nil, err
	}
	y, err := s.eval(p, e.Y)
	if err != nil {
		return nil, err
	}
	if len(x) != 1 || len(y) != 1 {
		return nil, fmt.Errorf("arithmetic with lists is not supported by limits_test.go")
	}
	switch a, b := x[0], y[0]; e.Op {
	case token.ADD:
		return []float64{a + b}, nil
	case token.SUB:
		return []float64{a - b}, nil
	case token.MUL:
		return []float64{a * b}, nil
	case token.QUO:
		return []float64{a / b}, nil
	case token.SHL:
		return []float64{a * float64(uint64(1)<<uint(b))}, nil
	}
	return nil, fmt.Errorf("operator %s is not supported by limits_test.go", e.Op)
}
