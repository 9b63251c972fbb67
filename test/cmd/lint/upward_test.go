package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"testing"

	"golang.org/x/tools/go/analysis"
)

// TestEachNameOfAnotherFileIsAReference counts the references in three files. Several
// uses of a name count once. Uses in the same file and uses in a test do not count.
func TestEachNameOfAnotherFileIsAReference(t *testing.T) {
	set := token.NewFileSet()
	var files []*ast.File
	for _, f := range [][2]string{
		{"a.go", "package p\n\nfunc A() { B(); B(); var t T; t.M(); A() }\n"},
		{"b.go", "package p\n\nfunc B() { C() }\n\nfunc C() { println(limit) }\n"},
		{"t.go", "package p\n\nconst limit = 1\n\ntype T struct{ f int }\n\nfunc (t T) M() { t.f++; B() }\n"},
		{"p_test.go", "package p\n\nfunc x() { A() }\n"},
	} {
		file, err := parser.ParseFile(set, f[0], f[1], 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := new(types.Config).Check("p", set, files, info)
	if err != nil {
		t.Fatal(err)
	}
	got := references(&analysis.Pass{Fset: set, Files: files, Pkg: pkg, TypesInfo: info})
	want := graph{{"a.go", "b.go"}: 1, {"a.go", "t.go"}: 2, {"b.go", "t.go"}: 1, {"t.go", "b.go"}: 1}
	if !maps.Equal(got, want) {
		t.Errorf("references %v; want %v", got, want)
	}
	if up := got.upward(orderOf(got)); up != 1 || got.total() != 5 {
		t.Errorf("%d of %d references lead upward; want 1 of 5", up, got.total())
	}
}

// TestOrderHasTheFewestReferencesUpward compares the order from orderOf with every
// order of five files. None may have fewer references upward.
func TestOrderHasTheFewestReferencesUpward(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	for seed := range 40 {
		g := graph{}
		for i, from := range names {
			for j, to := range names {
				if n := (seed*7 + i*5 + j*11 + seed*i*j) % 6; i != j && n > 1 {
					g[[2]string{from, to}] = n - 1
				}
			}
		}
		best := g.total()
		permute(names, func(order []string) { best = min(best, g.upward(order)) })
		if got := g.upward(orderOf(g)); got > best {
			t.Errorf("graph %d: %d references lead upward; want %d, as in the best order", seed, got, best)
		}
	}
}

// permute calls f with every order of names.
func permute(names []string, f func([]string)) {
	if len(names) == 0 {
		f(nil)
		return
	}
	for i, first := range names {
		permute(slices.Concat(names[:i], names[i+1:]), func(rest []string) { f(append([]string{first}, rest...)) })
	}
}
