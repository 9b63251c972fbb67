// Systems checks that the programs compile for systems on which no test runs:
//
//	go run ./test/cmd/systems windows darwin
//
// It checks the types in the packages of this module, which is much faster than
// compiling. From other modules and the standard library, it reads only the
// declarations.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	failed := false
	for _, system := range os.Args[1:] {
		faults, err := check(system)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		for _, fault := range faults {
			fmt.Println(fault)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the type errors in this module's packages for a system (GOOS).
func check(system string) (faults []string, err error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	cfg := &packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes | packages.NeedModule,
		Env: append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0"),
		ParseFile: func(set *token.FileSet, name string, source []byte) (*ast.File, error) {
			file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
			if err == nil && !strings.HasPrefix(name, here+string(filepath.Separator)) {
				withoutBodies(file)
			}
			return file, err
		},
	}
	loaded, err := packages.Load(cfg, "./cmd/...")
	if err != nil {
		return nil, err
	}
	packages.Visit(loaded, nil, func(p *packages.Package) {
		if p.Module == nil || !p.Module.Main {
			return
		}
		for _, e := range p.Errors {
			faults = append(faults, fmt.Sprintf("%s: %v", system, e))
		}
	})
	return faults, nil
}

func withoutBodies(file *ast.File) {
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			f.Body = nil
		}
	}
}
