package cli

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// A program has a few commands and flags for the tests.
type program struct {
	Common

	Serve struct {
		DataDir string `help:"Where …; .keys\\ too." placeholder:"DIR"`
		Mode    string `help:"How." enum:"fast,slow" default:"fast"`
		Plain   bool   `help:"Without TLS."`
		Secret  string `help:"Not for people." hidden:""`
	} `cmd:"" help:"Run it. For long."`
	Token struct {
		Client struct {
			Name string `arg:"" help:"Whose."`
		} `cmd:"" help:"Print one for a client."`
		Host struct{} `cmd:"" help:"Print one for a host."`
	} `cmd:"" help:"Print a token."`
	Inner struct{} `cmd:"" hidden:"" help:"Not for people."`
	Manual
}

// prints runs one of the program's commands and returns its output.
func prints(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	var p program
	parsed, err := Program{App: &p, Name: "tiny-tool", Description: "Does little. And that well.", Prefix: "TINY"}.Parse(args, &out, &out)
	if err == nil {
		err = parsed.Run()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestManPageHasEachCommand prints the manual page. It must have all commands and flags
// that help shows, escaped for the formatter.
func TestManPageHasEachCommand(t *testing.T) {
	page := prints(t, "man")
	for _, want := range []string{
		`tiny\-tool \- Does little`, `.SS tiny\-tool serve`, `.SS tiny\-tool token client <name>`, `\fB\-\-data\-dir\fR=\fIDIR\fR`,
		`Where \[u2026]; .keys\e too.`, "Environment: TINY_MODE.", `\fB\-\-plain\fR` + "\n", `\fB\-\-log\-level\fR`, ".I <name>\nWhose.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{"Inner", "inner", "secret", "man\n"} {
		if strings.Contains(page, not) {
			t.Errorf("the page contains %q; want no hidden flags or commands", not)
		}
	}
}

// TestBashCompletesCommandLines completes command lines in bash with the program's
// script.
func TestBashCompletesCommandLines(t *testing.T) {
	script := prints(t, "completion", "bash") + `
COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _tiny_tool; echo "${COMPREPLY[*]}"`
	for line, want := range map[string]string{
		"tiny-tool se":                         "serve",
		"tiny-tool token ":                     "client host --help --config --log-level --log-format --ca-file --version",
		"tiny-tool --log-level warn token c":   "client",
		"tiny-tool serve --mode ":              "fast slow",
		"tiny-tool serve --mode s":             "slow",
		"tiny-tool serve --pl":                 "--plain",
		"tiny-tool serve --data-dir ":          "",
		"tiny-tool serve --data-dir /x --mod":  "--mode",
		"tiny-tool serve --sec":                "",
		"tiny-tool in":                         "",
		"tiny-tool serve --log-format json --": "--help --config --log-level --log-format --ca-file --version --data-dir --mode --plain",
	} {
		words := append([]string{"-c", script, "bash"}, strings.Split(line, " ")...)
		out, err := exec.Command("bash", words...).CombinedOutput()
		if err != nil {
			t.Fatalf("bash: %v: %s", err, out)
		}
		if got := strings.TrimSpace(string(out)); got != want {
			t.Errorf("%q is completed to %q; want %q", line, got, want)
		}
	}
	for shell, want := range map[string]string{
		"zsh":  "'token client') may='--help",
		"fish": "complete -c tiny-tool -n 'true; and __fish_seen_subcommand_from serve' -l mode -d 'How' -x -a 'fast slow'",
	} {
		if got := prints(t, "completion", shell); !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %q in it", shell, got, want)
		}
	}
}
