package ahprelay

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var metricName = regexp.MustCompile(`\b(ahp_(relay|agent)|mcp_sampling)_[a-z0-9_]+`)

// metricsInCode returns the metrics' names, which are literals in the code. Strange are
// the names of further metrics, without one of this project's prefixes.
func metricsInCode(t *testing.T) (names map[string]bool, strange []string) {
	t.Helper()
	names = map[string]bool{}
	fset := token.NewFileSet()
	for _, dir := range []string{"gateway", "hostagent"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if s, err := strconv.Unquote(lit.Value); err == nil && metricName.FindString(s) == s && s != "" {
						names[s] = true
					}
				}
				if name, at, ok := namedMetric(n); ok && metricName.FindString(name) != name {
					strange = append(strange, fset.Position(at).String()+": "+name)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names, strange
}

// namedMetric returns the name in a call that makes a metric of a literal.
func namedMetric(n ast.Node) (name string, at token.Pos, ok bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) < 2 {
		return "", 0, false
	}
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"NewDesc", "Build", "Delays", "Gauge", "Counter"}, called.Sel.Name) {
		return "", 0, false
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", 0, false
	}
	name, err := strconv.Unquote(lit.Value)
	return name, call.Pos(), err == nil
}

// documentedMetrics returns the names in the tables of docs/operating.md.
func documentedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			for _, name := range metricName.FindAllString(cells[1], -1) {
				if names[name] {
					t.Errorf("docs/operating.md lists the metric %s twice", name)
				}
				names[name] = true
			}
		}
	}
	return names
}

// TestMetricsAreDocumented fails on a metric that the table does not have, or that
// only the table has, and on one without the prefix of its program.
func TestMetricsAreDocumented(t *testing.T) {
	code, strange := metricsInCode(t)
	documented := documentedMetrics(t)
	for _, name := range slices.Sorted(maps.Keys(code)) {
		if !documented[name] {
			t.Errorf("docs/operating.md lacks the metric %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if !code[name] {
			t.Errorf("docs/operating.md lists the metric %s, which no code makes", name)
		}
	}
	for _, s := range strange {
		t.Errorf("the metric name %s in the code: want ahp_relay_… or ahp_agent_…", s)
	}
	if len(code) < 40 {
		t.Errorf("the test has found %d metric names in the code; want all", len(code))
	}
}

// TestDashboardAsksForKnownMetrics fails where the dashboard asks for a metric that there is not, or
// has panels that stand one on the other.
func TestDashboardAsksForKnownMetrics(t *testing.T) {
	text, err := os.ReadFile("packaging/grafana/ahp-relay.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	names, _ := metricsInCode(t)
	var exprs []string
	taken := map[[2]int]string{}
	for _, p := range board.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the dashboard's panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" || at[0] >= 24 {
					t.Fatalf("the dashboard's panel %q is at %v, which the panel %q covers", p.Title, at, other)
				}
				taken[at] = p.Title
			}
		}
	}
	for _, v := range board.Templating.List {
		exprs = append(exprs, v.Definition)
	}
	seen := 0
	for _, expr := range exprs {
		for _, name := range regexp.MustCompile(`\b(ahp|go|process)_[a-z0-9_]+`).FindAllString(expr, -1) {
			seen++
			histogram, is := strings.CutSuffix(name, "_bucket")
			standard := !strings.HasPrefix(name, "ahp_") // of the Go client
			if !standard && !names[name] && !(is && names[histogram]) {
				t.Errorf("the dashboard's query has the metric %s, which no code makes: %s", name, expr)
			}
		}
	}
	if seen < 40 {
		t.Errorf("the test has found %d metrics in the dashboard; want all", seen)
	}
}

// sizeInRule matches a size in bytes.
var sizeInRule = regexp.MustCompile(`\b[0-9]{7,}\b`)

// TestAlertsHaveMetricsAndRunbooks: each alert asks for metrics that there are, and has a runbook. None compares with a
// size in bytes, because relays have bounds that follow from their memory.
func TestAlertsHaveMetricsAndRunbooks(t *testing.T) {
	text, err := os.ReadFile("packaging/helm/ahp-relay/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	runbooks, err := os.ReadFile("docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	names, _ := metricsInCode(t)
	headings := anchors(string(runbooks))
	alerts := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			alerts++
			for _, name := range metricName.FindAllString(rule.Expr, -1) {
				if !names[name] && !names[strings.TrimSuffix(name, "_bucket")] {
					t.Errorf("the alert %s uses the metric %s, which no code makes", rule.Alert, name)
				}
			}
			if size := sizeInRule.FindString(rule.Expr); size != "" {
				t.Errorf("%s compares with %s bytes; want a metric, because that bound differs between relays", rule.Alert, size)
			}
			anchor := strings.ToLower(rule.Alert)
			if rule.Annotations["runbook"] != "docs/runbooks.md#"+anchor || !slices.Contains(headings, anchor) {
				t.Errorf("%s has the runbook %q; want docs/runbooks.md#%s, which must have that heading", rule.Alert, rule.Annotations["runbook"], anchor)
			}
			if rule.Annotations["summary"] == "" {
				t.Errorf("%s has no summary", rule.Alert)
			}
		}
	}
	if alerts < 10 || len(headings) != alerts+1 {
		t.Errorf("%d alerts, %d headings in docs/runbooks.md; want a heading for each alert, and the title", alerts, len(headings))
	}
}
