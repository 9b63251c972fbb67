// Command lint runs the analyzers of go vet and of staticcheck, and the analyzers upward
// and events. Each package is parsed and type-checked only once:
//
//	go build -o bin/test/lint ./test/cmd/lint && go vet -vettool=bin/test/lint ./...
//
// The go command caches the results, as for go vet.
//
// About the packages that a package imports, the analyzers know only what go vet
// collects, and which names are deprecated. The staticcheck command also analyzes their
// functions, to learn which are pure or never return nil. This takes most of its time.
package main

import (
	"encoding/gob"
	"encoding/json"
	"log"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/facts/deprecated"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("lint: ")
	imported, err := onlyFacts(os.Args[len(os.Args)-1])
	if err != nil {
		log.Fatal(err)
	}
	suite := slices.DeleteFunc(slices.Clone(vet.Suite), func(a *analysis.Analyzer) bool { return !vetRuns(a) })
	if imported {
		readable(static()) // some packages that this one imports were checked in full
		unitchecker.Main(append(suite, deprecated.Analyzer)...)
	}
	unitchecker.Main(append(append(suite, upward, events), static()...)...)
}

// vetRuns reports whether the go vet of Go 1.26 runs an analyzer. The imported suite is
// newer and has more.
func vetRuns(a *analysis.Analyzer) bool { return a.Name != "scannererr" && a.Name != "sqlrowserr" }

// onlyFacts reports whether go vet asks, by this configuration file, only for facts about
// a package for those that import it.
func onlyFacts(config string) (bool, error) {
	if !strings.HasSuffix(config, ".cfg") { // the go command asks about this program
		return false, nil
	}
	data, err := os.ReadFile(config)
	if err != nil {
		return false, err
	}
	var unit struct{ VetxOnly bool }
	if err := json.Unmarshal(data, &unit); err != nil {
		return false, err
	}
	return unit.VetxOnly, nil
}

// readable makes the facts of analyzers that do not run readable.
func readable(analyzers []*analysis.Analyzer) {
	for _, a := range analyzers {
		for _, fact := range a.FactTypes {
			gob.Register(fact)
		}
		readable(a.Requires)
	}
}

// static returns the analyzers that the staticcheck command runs by default.
func static() []*analysis.Analyzer {
	all := []*analysis.Analyzer{unusedCode}
	for _, some := range [][]*lint.Analyzer{simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers} {
		for _, a := range some {
			if !a.Doc.NonDefault {
				all = append(all, named(a.Analyzer))
			}
		}
	}
	return all
}

// named adds the analyzer's name to each of its messages.
// https://staticcheck.dev/docs/checks explains the names.
func named(a *analysis.Analyzer) *analysis.Analyzer {
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		report := pass.Report
		pass.Report = func(d analysis.Diagnostic) {
			d.Message += " (" + a.Name + ")"
			report(d)
		}
		return run(pass)
	}
	return a
}

// unusedCode runs the check U1000. It checks a package together with its tests, so code
// that only tests use counts as used.
var unusedCode = &analysis.Analyzer{
	Name:     "unused",
	Doc:      "unused code (U1000)",
	Requires: []*analysis.Analyzer{unused.Analyzer.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, object := range pass.ResultOf[unused.Analyzer.Analyzer].(unused.Result).Unused {
			for _, file := range pass.Files {
				if at := pass.Fset.File(file.Pos()); at.Name() == object.Position.Filename {
					pass.Reportf(at.Pos(object.Position.Offset), "%s %s is unused (U1000)", object.Kind, object.Name)
				}
			}
		}
		return nil, nil
	},
}
