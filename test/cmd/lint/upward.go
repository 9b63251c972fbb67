package main

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// These are the bounds for references between the files of a package.
const (
	largePackage = 2000 // lines: a package with fewer has no bound
	mostUpward   = 20   // percent of all references
)

// upward reports a package whose files have no clear order. It puts the files into the
// order in which the fewest references lead upward, and compares this number with all
// references. A reference is the use of a name that another file of the package
// declares: a function, method, type, variable or constant. Several uses in a file
// count once. Tests do not count.
var upward = &analysis.Analyzer{
	Name: "upward",
	Doc:  "references between files run in one direction",
	Run: func(pass *analysis.Pass) (any, error) {
		lines := 0
		var first *ast.File
		for _, f := range pass.Files {
			if isSource(pass, f) {
				lines += pass.Fset.File(f.Pos()).LineCount()
				if first == nil {
					first = f
				}
			}
		}
		if lines <= largePackage {
			return nil, nil
		}
		refs := references(pass)
		order := orderOf(refs)
		if up, all := refs.upward(order), refs.total(); 100*up > mostUpward*all {
			pass.Reportf(first.Name.Pos(), "%d of %d references between files lead upward, more than %d %%: move declarations to the files that use them; the best order is %s",
				up, all, mostUpward, strings.Join(order, ", "))
		}
		return nil, nil
	},
}

// isSource reports whether a file is neither a test nor generated.
func isSource(pass *analysis.Pass, f *ast.File) bool {
	return !strings.HasSuffix(pass.Fset.File(f.Pos()).Name(), "_test.go") && !ast.IsGenerated(f)
}

// A graph has the number of references from a file to another.
type graph map[[2]string]int

// references counts the references between the files of a package.
func references(pass *analysis.Pass) graph {
	refs := graph{}
	for _, f := range pass.Files {
		if !isSource(pass, f) {
			continue
		}
		from := filepath.Base(pass.Fset.File(f.Pos()).Name())
		seen := map[types.Object]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			used := pass.TypesInfo.Uses[id]
			if used == nil || !isShared(pass.Pkg, used) || seen[used] {
				return true
			}
			seen[used] = true
			if to := filepath.Base(pass.Fset.Position(used.Pos()).Filename); to != from && !strings.HasSuffix(to, "_test.go") {
				refs[[2]string{from, to}]++
			}
			return true
		})
	}
	return refs
}

// isShared reports whether a name is visible in all files of a package: declared at the
// top level, or as a method.
func isShared(pkg *types.Package, o types.Object) bool {
	if o.Pkg() != pkg {
		return false
	}
	f, ok := o.(*types.Func)
	return o.Parent() == pkg.Scope() || ok && f.Signature().Recv() != nil
}

func (g graph) total() int {
	n := 0
	for _, count := range g {
		n += count
	}
	return n
}

// upward counts the references from a file to an earlier file in order.
func (g graph) upward(order []string) int {
	at := map[string]int{}
	for i, name := range order {
		at[name] = i
	}
	n := 0
	for edge, count := range g {
		if at[edge[1]] < at[edge[0]] {
			n += count
		}
	}
	return n
}

// orderOf returns an order of the files. No single file can move to reduce the number
// of references that lead upward.
func orderOf(g graph) []string {
	var order []string
	weight := map[string]int{} // references to other files, less references from them
	for edge, count := range g {
		weight[edge[0]] += count
		weight[edge[1]] -= count
	}
	for name := range weight {
		order = append(order, name)
	}
	slices.SortFunc(order, func(a, b string) int {
		if weight[a] != weight[b] {
			return weight[b] - weight[a]
		}
		return strings.Compare(a, b)
	})
	for moved := true; moved; {
		moved = false
		for _, name := range slices.Clone(order) {
			i := slices.Index(order, name)
			if j := g.bestPlace(order, i); j != i {
				order = slices.Insert(slices.Delete(order, i, i+1), j, name)
				moved = true
			}
		}
	}
	return order
}

// bestPlace returns the index to which file i can move so that the fewest references
// lead upward. If no move is better, it returns i.
func (g graph) bestPlace(order []string, i int) int {
	best, gain := i, 0
	for _, step := range []int{-1, 1} {
		sum := 0
		for j := i + step; j >= 0 && j < len(order); j += step {
			above, below := order[i], order[j]
			if step < 0 {
				above, below = below, above
			}
			// When the two files change their order, references between them change their
			// direction.
			sum += g[[2]string{below, above}] - g[[2]string{above, below}]
			if sum > gain {
				best, gain = j, sum
			}
		}
	}
	return best
}
