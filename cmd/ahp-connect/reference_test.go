package main

import (
	"flag"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference.md")

// TestReferenceListsEachFlag checks that docs/reference.md lists the program's flags.
func TestReferenceListsEachFlag(t *testing.T) {
	if err := new(app).program().CheckReference("../../docs/reference.md", *update); err != nil {
		t.Error(err)
	}
}
