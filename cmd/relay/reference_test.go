package main

import (
	"testing"

	"ahprelay/test/reference"
)

// TestReferenceListsEachFlag checks that docs/reference.md lists the program's flags.
func TestReferenceListsEachFlag(t *testing.T) {
	model, err := new(app).program().Model()
	if err != nil {
		t.Fatal(err)
	}
	reference.Check(t, "../../docs/reference.md", model)
}
