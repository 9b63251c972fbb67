// Command write writes the console as a static site for one relay, and prints the SHA-256
// of each file. The same sources and relay give the same bytes.
//
//	go run ./console/site/write -relay https://relay.example.com -out artifacts/console-site
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"ahprelay/console/site"
)

func main() {
	relay := flag.String("relay", "", "the relay's address")
	out := flag.String("out", "artifacts/console-site", "the directory to write")
	flag.Parse()
	if err := write(*relay, *out, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func write(relay, out string, w io.Writer) error {
	files, err := site.Of(relay)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return err
		}
		fmt.Fprintf(w, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	return nil
}
