// Command write writes the console as a static site for relays, and prints the SHA-256
// of each file. The same sources and relays give the same bytes.
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
	"strings"

	"ahprelay/console/site"
)

func main() {
	relays := flag.String("relay", "", "the relay's address; further relays, for more accounts, after spaces")
	out := flag.String("out", "artifacts/console-site", "the directory to write")
	flag.Parse()
	if err := write(strings.Fields(*relays), *out, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func write(relays []string, out string, w io.Writer) error {
	files, err := site.Of(relays...)
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
