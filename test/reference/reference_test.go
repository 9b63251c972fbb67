package reference

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

type toy struct {
	LogLevel slog.Level `help:"Lowest level to log." default:"info"`

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

// TestReferenceContainsEveryFlag checks that the reference contains each flag and
// command that help shows, with its description.
func TestReferenceContainsEveryFlag(t *testing.T) {
	parser, err := kong.New(new(toy), kong.Name("toy"), kong.Description("Cooks."), kong.DefaultEnvars("TOY"))
	if err != nil {
		t.Fatal(err)
	}
	all := of(parser.Model)
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
