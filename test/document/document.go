// Package document puts measured tables into documents.
package document

import (
	"bytes"
	"fmt"
	"os"
	"slices"
)

// Replace replaces the lines of a file between "<!-- WRITER writes from here -->" and
// "<!-- to here -->". The writer is a command, such as make bench.
func Replace(file, writer string, lines []byte) error {
	begins, ends := fmt.Sprintf("<!-- %s writes from here -->\n", writer), "<!-- to here -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(begins))
	_, after, ended := bytes.Cut(rest, []byte(ends))
	if !ok || !ended {
		return fmt.Errorf("%s has no lines %q and %q", file, begins[:len(begins)-1], ends[:len(ends)-1])
	}
	return os.WriteFile(file, slices.Concat(before, []byte(begins), []byte("\n"), lines, []byte("\n"), []byte(ends), after), 0o644)
}
