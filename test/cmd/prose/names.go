package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// A names has the identifiers in the project's Go code.
type names struct {
	packages map[string]map[string]bool // top-level names of each package
	members  map[string]map[string]bool // fields and methods of each type name, over all packages
	tests    map[string]bool            // names of tests, benchmarks, fuzz tests and examples
}

var (
	docLink  = regexp.MustCompile(`\[\*?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*){0,2})\](?:[^(\w\]]|$)`)
	aTest    = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w+`)
	dotted   = regexp.MustCompile(`(?:^|[^\w./"'-])([A-Za-z]\w*)\.([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?`)
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	aPath    = regexp.MustCompile(`^\.?/?([a-z][\w.-]*(?:/[\w.-]+)+)/?$`)
	fileEnd  = regexp.MustCompile(`\.(go|ts|tsx|md|js|json|yaml)$`)
	upperOne = regexp.MustCompile(`^[A-Z]`)
)

// index reads the declarations in all Go files.
func (tree *checkout) index() *names {
	ix := &names{packages: map[string]map[string]bool{}, members: map[string]map[string]bool{}, tests: map[string]bool{}}
	for _, f := range tree.files {
		if !strings.HasSuffix(f.path, ".go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.path, f.text, parser.SkipObjectResolution)
		if err != nil {
			continue // the compiler reports the error
		}
		ix.add(parsed)
	}
	return ix
}

func (ix *names) add(f *ast.File) {
	name := strings.TrimSuffix(f.Name.Name, "_test")
	top := into(ix.packages, name)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if aTest.MatchString(d.Name.Name) {
				ix.tests[d.Name.Name] = true
			}
			if d.Recv == nil {
				top[d.Name.Name] = true
			} else if t := receiver(d.Recv.List[0].Type); t != "" {
				into(ix.members, t)[d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, n := range s.Names {
						top[n.Name] = true
					}
				case *ast.TypeSpec:
					top[s.Name.Name] = true
					ix.addMembers(s)
				}
			}
		}
	}
}

// addMembers adds the fields of a struct, the fields of structs inside it, and the
// methods of an interface.
func (ix *names) addMembers(s *ast.TypeSpec) {
	all := into(ix.members, s.Name.Name)
	ast.Inspect(s.Type, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok {
			for _, n := range field.Names {
				all[n.Name] = true
			}
			if len(field.Names) == 0 {
				all[receiver(field.Type)] = true
			}
		}
		return true
	})
}

// receiver returns the name of a type. The type may be a pointer or generic, or belong
// to another package.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.SelectorExpr:
		return t.Sel.Name
	case *ast.Ident:
		return t.Name
	}
	return ""
}

func into(m map[string]map[string]bool, key string) map[string]bool {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	return m[key]
}

// unknownNames returns a line for each name that a comment or document mentions and
// that does not exist in the project.
func (tree *checkout) unknownNames() (lines []string) {
	ix := tree.index()
	for _, f := range tree.files {
		switch {
		case f.generated:
		case strings.HasSuffix(f.path, ".go"):
			for _, p := range comments(f, goComments) {
				for _, u := range ix.unknownInComment(f, p.text) {
					lines = append(lines, fmt.Sprintf("%s:%d: %s does not exist", p.path, p.line, u))
				}
			}
		case strings.HasSuffix(f.path, ".md"):
			for _, u := range tree.unknownInDocument(ix, f.text) {
				lines = append(lines, fmt.Sprintf("%s: %s does not exist", f.path, u))
			}
		}
	}
	return lines
}

// unknownInComment returns the names in a comment that do not exist. It checks names of
// tests, doc links, and names behind the name of a package.
func (ix *names) unknownInComment(f file, text string) (unknown []string) {
	for _, t := range aTest.FindAllString(text, -1) {
		if !ix.tests[t] && !ix.declared(t) {
			unknown = append(unknown, t)
		}
	}
	own := packageOf(f)
	for _, m := range docLink.FindAllStringSubmatch(text, -1) {
		parts := strings.Split(m[1], ".")
		switch {
		case !upperOne.MatchString(parts[len(parts)-1]), m[1] == strings.ToUpper(m[1]):
		case len(parts) == 1:
			if !ix.packages[own][parts[0]] && !ix.isMember(parts[0]) {
				unknown = append(unknown, "["+m[1]+"]")
			}
		case upperOne.MatchString(parts[0]):
			if !ix.members[parts[0]][parts[1]] {
				unknown = append(unknown, "["+m[1]+"]")
			}
		}
	}
	for _, m := range dotted.FindAllStringSubmatch(text, -1) {
		if top, ours := ix.packages[m[1]]; ours && m[1] != "main" && upperOne.MatchString(m[2]) && !top[m[2]] {
			unknown = append(unknown, m[1]+"."+m[2])
		}
	}
	return unknown
}

// unknownInDocument returns the names in backquotes that do not exist. It checks names
// of tests, paths, and names behind a package or a type.
func (tree *checkout) unknownInDocument(ix *names, text string) (unknown []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		code := m[1]
		for _, t := range aTest.FindAllString(code, -1) {
			if !ix.tests[t] && !ix.declared(t) {
				unknown = append(unknown, t)
			}
		}
		if p := aPath.FindStringSubmatch(code); p != nil {
			if top, _, _ := strings.Cut(p[1], "/"); tree.known[top] && !tree.known[strings.TrimSuffix(p[1], "/")] && !tree.isMade(p[1]) {
				unknown = append(unknown, code)
			}
			continue
		}
		d := dotted.FindStringSubmatch(code)
		if d == nil || d[0] != strings.TrimSuffix(code, "()") || fileEnd.MatchString(code) || tree.isText(code) {
			continue
		}
		top, isPackage := ix.packages[d[1]]
		fields, isType := ix.members[d[1]]
		switch {
		case isPackage && tree.isOurs(d[1]):
			if !top[d[2]] || d[3] != "" && !ix.members[d[2]][d[3]] {
				unknown = append(unknown, code)
			}
		case isType && upperOne.MatchString(d[1]) && !fields[d[2]]:
			unknown = append(unknown, code)
		}
	}
	return unknown
}

// isText reports whether Go code contains the name as a string, such as an attribute of
// spans or a key of a configuration.
func (tree *checkout) isText(name string) bool {
	return slices.ContainsFunc(tree.files, func(f file) bool { return strings.Contains(f.text, `"`+name+`"`) })
}

// isMade reports whether a build or a run writes the path, so that git does not track
// it.
func (tree *checkout) isMade(p string) bool {
	return slices.ContainsFunc([]string{"bin/", "dist/", "artifacts/"}, func(dir string) bool { return strings.HasPrefix(p, dir) })
}

// isOurs reports whether the project has a directory with the package's name.
func (tree *checkout) isOurs(pkg string) bool {
	for p := range tree.known {
		if path.Base(p) == pkg {
			return true
		}
	}
	return false
}

// declared reports whether a package of the project declares the name at its top level.
func (ix *names) declared(name string) bool {
	for _, top := range ix.packages {
		if top[name] {
			return true
		}
	}
	return false
}

// isMember reports whether a type of the project has a field or a method with the name.
func (ix *names) isMember(name string) bool {
	for _, all := range ix.members {
		if all[name] {
			return true
		}
	}
	return false
}

var packageLine = regexp.MustCompile(`(?m)^package (\w+)`)

// packageOf returns the name of the package to which a Go file belongs, without _test.
func packageOf(f file) string {
	if m := packageLine.FindStringSubmatch(f.text); m != nil {
		return strings.TrimSuffix(m[1], "_test")
	}
	return ""
}
