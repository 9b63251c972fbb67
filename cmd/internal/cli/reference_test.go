package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type toy struct {
	Common
	Boil struct {
		Minutes int      `help:"How long | how hard." default:"5" placeholder:"MINUTES"`
		Gas     bool     `help:"With gas." default:"true" negatable:""`
		Pot     string   `help:"In it." required:"" xor:"in"`
		Pan     string   `help:"Or in that." required:"" xor:"in"`
		How     string   `help:"How." enum:"soft,hard" default:"soft"`
		Secret  string   `hidden:"" help:"Nobody's business."`
		Eggs    []string `arg:"" help:"What."`
	} `cmd:"" help:"Boil eggs."`
	Hidden struct{} `cmd:"" hidden:"" help:"Nobody's business."`
}

func (t *toy) program() Program {
	return Program{App: t, Name: "toy", Description: "Cooks.", Prefix: "TOY"}
}

// TestReferenceContainsEveryFlag checks that the reference contains each flag and
// command that help shows, with its description.
func TestReferenceContainsEveryFlag(t *testing.T) {
	all, err := new(toy).program().Reference()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"## toy\n\nCooks.\n", "### toy boil\n\nBoil eggs.\n", "\n    toy boil (--pot=STRING | --pan=STRING) <eggs> ...\n", "`<eggs> ...`: What.\n",
		"| `--minutes=MINUTES` | `TOY_MINUTES` | `5` | How long \\| how hard. |\n", "| on; `--no-gas` turns it off | With gas. |\n",
		"| `--how=soft\\|hard` | `TOY_HOW` | `soft` | How. |\n", "| `--pot=STRING` | `TOY_POT` | required | In it. |\n", "| `--log-level=LEVEL` | `TOY_LOG_LEVEL` | `info` |",
	} {
		if !strings.Contains(string(all), want) {
			t.Errorf("the reference lacks %q:\n%s", want, all)
		}
	}
	if bytes.Contains(all, []byte("business")) || bytes.Contains(all, []byte("idden")) {
		t.Errorf("the reference contains hidden flags or commands:\n%s", all)
	}
}

// TestDifferentReferenceIsReported checks documents whose flags are not those of the
// program. Each is reported. An update writes only the text between the marks.
func TestDifferentReferenceIsReported(t *testing.T) {
	file := filepath.Join(t.TempDir(), "reference.md")
	for text, old := range map[string]bool{"a\n<!-- begin toy -->\nx\n<!-- end toy -->\nb\n": true, "no marks": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := new(toy).program().CheckReference(file, false); err == nil || errors.Is(err, ErrOldReference) != old {
			t.Errorf("CheckReference of %q: %v; want an error, and ErrOldReference only for old text", text, err)
		}
	}
	if err := os.WriteFile(file, []byte("a\n<!-- begin toy -->\nx\n<!-- end toy -->\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := new(toy).program().CheckReference(file, true); err != nil {
		t.Fatal(err)
	}
	if err := new(toy).program().CheckReference(file, false); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(text, []byte("a\n<!-- begin toy -->\n## toy\n")) || !bytes.HasSuffix(text, []byte("\n<!-- end toy -->\nb\n")) {
		t.Errorf("reading the updated file: %v, %s; want the text around the reference unchanged", err, text)
	}
}
