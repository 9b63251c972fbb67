package main

import (
	"bytes"
	"os"
	"testing"
)

// TestTypesAreCurrent fails if types.go is not the output for schema.json.
func TestTypesAreCurrent(t *testing.T) {
	want, err := generate(schema)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../types.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("types.go differs from the schema; want the result of go generate ./internal/acp")
	}
}
