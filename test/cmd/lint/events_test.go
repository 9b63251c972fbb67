package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
)

// TestLogMessagesAreEvents checks log calls. Each call with a fault must be reported once,
// and the others must pass.
func TestLogMessagesAreEvents(t *testing.T) {
	const head = "package p\n\nimport \"log/slog\"\n\nfunc f(ctx any, log *slog.Logger, id string, err error) {\n\t"
	slog := check(t, "log/slog", slogStub, &types.Config{}).Pkg
	for call, want := range map[string]string{
		`log.Info("lease renewed", "host", id)`:                                           "",
		`log.Warn("NATS servers unreachable", "error", err, "hint", "start them")`:        "",
		`log.Warn("mcp.rejection", "rejection_class", id)`:                                "",
		`slog.ErrorContext(ctx, "audit file not written", "error", err)`:                  "",
		`log.LogAttrs(ctx, slog.LevelInfo, "audit", slog.String("event", id))`:            "",
		`log.With("conn", id).Debug("lease renewed", slog.Any("error", err), "host", id)`: "",
		`log.Error(err.Error())`:                            "is no constant",
		`log.Info("lease " + id + " renewed")`:              "is no constant",
		`log.InfoContext(ctx, id)`:                          "is no constant",
		`log.Log(ctx, slog.LevelInfo, id)`:                  "is no constant",
		`log.Info("Lease renewed")`:                         "begins with a capital",
		`log.Info("lease renewed.")`:                        "ends with",
		`log.Info("store unreachable; trying again")`:       "has two parts",
		`log.Info("store unreachable: records wait")`:       "has two parts",
		`log.Info("the lease was renewed")`:                 `has the verb "was"`,
		`log.Info("store cannot be read")`:                  `has the verb "cannot"`,
		`log.Info("lease renewed", "because", err)`:         `"reason"`,
		`log.With("remote", id).Info("lease renewed")`:      `"address"`,
		`log.Info("lease renewed", slog.String("why", id))`: `"reason"`,
		`log.Info("lease renewed", "hostName", id)`:         "has capitals",
	} {
		got := eventFaults(t, slog, head+call+"\n}\n")
		if (want == "") != (len(got) == 0) || len(got) > 1 || want != "" && !strings.Contains(got[0], want) {
			t.Errorf("%s: %q; want %q", call, got, want)
		}
	}
}

// slogStub declares the parts of log/slog that the test uses.
const slogStub = `package slog

type (
	Logger struct{}
	Attr   struct{}
	Level  int
)

const LevelInfo Level = 0

func String(key, value string) (a Attr)      { return }
func Any(key string, value any) (a Attr)     { return }
func ErrorContext(ctx any, msg string, args ...any) {}

func (l *Logger) With(args ...any) *Logger                              { return l }
func (l *Logger) Debug(msg string, args ...any)                         {}
func (l *Logger) Info(msg string, args ...any)                          {}
func (l *Logger) InfoContext(ctx any, msg string, args ...any)          {}
func (l *Logger) Warn(msg string, args ...any)                          {}
func (l *Logger) Error(msg string, args ...any)                         {}
func (l *Logger) Log(ctx any, level Level, msg string, args ...any)     {}
func (l *Logger) LogAttrs(ctx any, level Level, msg string, args ...Attr) {}
`

// eventFaults returns the reports of the analyzer events about a file.
func eventFaults(t *testing.T, slog *types.Package, source string) (faults []string) {
	pass := check(t, "p", source, &types.Config{Importer: stub{slog}})
	pass.Report = func(d analysis.Diagnostic) { faults = append(faults, d.Message) }
	if _, err := events.Run(pass); err != nil {
		t.Fatal(err)
	}
	return faults
}

// A stub imports a single package.
type stub struct{ pkg *types.Package }

// Import implements [types.Importer].
func (s stub) Import(string) (*types.Package, error) { return s.pkg, nil }

// check parses a file, and checks its types.
func check(t *testing.T, path, source string, config *types.Config) *analysis.Pass {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	pkg, err := config.Check(path, set, []*ast.File{file}, info)
	if err != nil {
		t.Fatal(err)
	}
	return &analysis.Pass{Fset: set, Files: []*ast.File{file}, Pkg: pkg, TypesInfo: info}
}
