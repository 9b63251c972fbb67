// Command build bundles the console: it reads console/src, console/frames and the
// libraries in console/npm, and writes console/dist, which is committed and embedded.
// It needs only Go.
//
//	go run ./console/build         writes dist
//	go run ./console/build -npm    updates the libraries to package-lock.json, with npm
//	go run ./console/build -types  checks the types and imports of the sources, with npm and Node.js
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"ahprelay/console/bundle"
)

func main() {
	dir := flag.String("dir", "console", "the console's directory")
	npm := flag.Bool("npm", false, "update the libraries instead")
	types := flag.Bool("types", false, "check the types and imports instead")
	flag.Parse()
	if err := run(*dir, *npm, *types); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(dir string, npm, types bool) error {
	if npm {
		return bundle.GetLibraries(dir)
	}
	if types {
		if err := bundle.CheckSources(dir); err != nil {
			return err
		}
		return bundle.CheckTypes(dir, os.Stdout)
	}
	files, err := bundle.Files(dir)
	if err != nil {
		return err
	}
	dist := filepath.Join(dir, "dist")
	if err := os.RemoveAll(dist); err != nil {
		return err
	}
	total := 0
	for name, content := range files {
		stored, packed, err := bundle.Pack(name, content)
		if err != nil {
			return err
		}
		path := filepath.Join(dist, filepath.FromSlash(stored))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, packed, 0o644); err != nil {
			return err
		}
		total += len(packed)
	}
	fmt.Printf("%d files, %d KB\n", len(files), total/1000)
	return nil
}
