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

// TestMistypedFlagsGetSensibleSuggestions gives unknown flags. A flag that only has a few letters in common is no suggestion,
// and the error names the help of the command.
func TestMistypedFlagsGetSensibleSuggestions(t *testing.T) {
	for arg, want := range map[string]string{
		"--session=x": "unknown flag --session (see prog share --help)",
		"--url=x":     "unknown flag --url (see prog share --help)",
		"--chanel=x":  "unknown flag --chanel; did you mean --channel? (see prog share --help)",
		"--log":       "unknown flag --log; did you mean --log-level or --log-format? (see prog share --help)",
		"--verison":   "unknown flag --verison; did you mean --version? (see prog share --help)",
	} {
		_, err := Program{App: &struct {
			Common
			Share struct {
				Channel string
				TTL     string `name:"ttl"`
			} `cmd:""`
		}{}, Name: "prog", Prefix: "AHP_PROG"}.Parse([]string{"share", arg}, io.Discard, io.Discard)
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", arg, err, want)
		}
	}
}
