// Prose checks the project's English and the names that it mentions.
//
//	prose            the table: how often each family of words stands in 1,000 words
//	prose --worst N  the N sentences to rewrite first
//	prose --check    exits with 1 if a count is above its bound, or if a comment
//	                 or document names an identifier, test or file that does not exist
//
// The bounds lie above the counts of eight well-read Go code bases (jrpc2,
// coder/websocket, pion/turn, go-sdk, derp, centrifuge, caddy, nats-server).
// A sentence with fewer of these words names its things: the connection, the
// lease, the viewer.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// left lists files that are not the project's own prose: packages by other authors,
// generated pages, test data and the change history.
var left = regexp.MustCompile(`(^|/)(npm|node_modules|dist|testdata|vendor)/|(^|/)(CHANGELOG|LICENSE)`)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("prose", flag.ContinueOnError)
	check := flags.Bool("check", false, "exit with 1 if a count is above its bound or a name does not exist")
	worst := flags.Int("worst", 0, "print this many of the sentences to rewrite first")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root := "."
	if flags.NArg() > 0 {
		root = flags.Arg(0)
	}
	tree, err := read(root)
	if err != nil {
		return err
	}
	found := tree.passages()
	if *worst > 0 {
		for _, s := range worstOf(found, *worst) {
			fmt.Fprintln(out, s)
		}
		return nil
	}
	over := table(out, found)
	unknown := tree.unknownNames()
	for _, u := range unknown {
		fmt.Fprintln(out, u)
	}
	if *check && (over > 0 || len(unknown) > 0) {
		return fmt.Errorf("%d counts are above their bounds, %d names do not exist", over, len(unknown))
	}
	return nil
}

// A file is a file of the project.
type file struct {
	path, text string
	generated  bool // a program has written it: its names exist for other files, and its text is not checked
}

// A checkout holds the text files that git tracks in a directory.
type checkout struct {
	files []file
	known map[string]bool // each tracked path, and each directory in such a path
}

// read returns the text files that git tracks below root.
func read(root string) (*checkout, error) {
	out, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	tree := &checkout{known: map[string]bool{}}
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		for dir := path; dir != "."; dir = filepath.Dir(dir) {
			tree.known[dir] = true
		}
		switch filepath.Ext(path) {
		case ".go", ".ts", ".tsx", ".md":
		default:
			continue
		}
		if left.MatchString(path) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if os.IsNotExist(err) {
			continue // the file is deleted in the checkout and not yet in git
		}
		if err != nil {
			return nil, err
		}
		generated := strings.Contains(string(text[:min(len(text), 400)]), "DO NOT EDIT")
		tree.files = append(tree.files, file{path, string(text), generated})
	}
	return tree, nil
}
