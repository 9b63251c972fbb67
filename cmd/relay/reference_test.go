package main

import (
	"flag"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference.md")

// TestReferenceListsEachFlag compares docs/reference.md with the flags.
func TestReferenceListsEachFlag(t *testing.T) {
	if err := new(app).program().CheckReference("../../docs/reference.md", *update); err != nil {
		t.Error(err)
	}
}
