package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMistypedVariablesAreReported sets environment variables with names similar to
// settings. Each is reported with the nearest setting. Kubernetes sets similar
// variables for services, which are not reported.
func TestMistypedVariablesAreReported(t *testing.T) {
	p := Program{App: &struct {
		Common
		Listen  string
		DataDir string `required:""`
	}{}, Name: "prog", Prefix: "AHP_PROG"}
	model, err := p.Model()
	if err != nil {
		t.Fatal(err)
	}
	got := p.mistyped(model.Node, []string{
		"AHP_PROG_LISTEN=x", "AHP_PROG_LOG_LEVEL=debug", "AHP_PROG_LISTN=x", "AHP_PROG_UNLIKE_ANYTHING=x", "PATH=/bin", "AHP_PROGRAM=x",
		"AHP_PROG_SERVICE_HOST=10.0.0.1", "AHP_PROG_SERVICE_PORT_HTTP=1", "AHP_PROG_PORT=tcp://10.0.0.1:1", "AHP_PROG_PORT_8484_TCP_ADDR=10.0.0.1",
	})
	want := []string{
		"environment variable AHP_PROG_LISTN is no setting of prog; did you mean AHP_PROG_LISTEN?",
		"environment variable AHP_PROG_UNLIKE_ANYTHING is no setting of prog",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	t.Setenv("AHP_PROG_DATADIR", "x")
	if _, err := p.Parse(nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "did you mean AHP_PROG_DATA_DIR?") {
		t.Errorf("a missing flag: %v; want the mistyped variable", err)
	}
	t.Setenv("AHP_PROG_DATA_DIR", "x")
	t.Setenv("AHP_PROG_VERSION", "1")
	t.Setenv("AHP_PROG_HELP", "1")
	if parsed, err := p.Parse(nil, io.Discard, io.Discard); parsed == nil || err != nil {
		t.Errorf("with a variable for --version: %v, %v; want that the program runs", parsed, err)
	}
}
