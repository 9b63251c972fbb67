package main

import (
	"flag"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference.md")

// TestReference holds docs/reference.md to what the flags say.
func TestReference(t *testing.T) {
	if err := new(app).program().CheckReference("../../docs/reference.md", *update); err != nil {
		t.Error(err)
	}
}
