package ahprelay

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	mdCode    = regexp.MustCompile("(?s)```.*?```")
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the names of a document's headings in links, as GitHub makes them.
func anchors(text string) (names []string) {
	for _, heading := range mdHeading.FindAllStringSubmatch(mdCode.ReplaceAllString(text, ""), -1) {
		name := notAnchor.ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
)

// TestPromisesHaveTests reads the tables in SECURITY.md whose last column is for tests. Each row
// names a test, and each named test exists.
func TestPromisesHaveTests(t *testing.T) {
	tests := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, f := range testFunc.FindAllStringSubmatch(string(source), -1) {
			tests[f[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range testName.FindAllStringSubmatch(string(text), -1) {
		if !tests[name[1]] {
			t.Errorf("SECURITY.md names the test %s, which does not exist", name[1])
		}
	}
	rows, inside := 0, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case strings.HasSuffix(line, "| test |"):
			inside = true
		case inside && !strings.HasPrefix(line, "|---"):
			rows++
			if cells := strings.Split(strings.Trim(line, "|"), " | "); !testName.MatchString(cells[len(cells)-1]) {
				t.Errorf("SECURITY.md has a promise without a test: %s", line)
			}
		}
	}
	if rows < 21 {
		t.Errorf("%d promises have tests; want the eleven about sealed hosts, and AHP's ten", rows)
	}
}

// TestLinksOfDocuments fails if a document links to a file, or to a heading of one, that is not there.
func TestLinksOfDocuments(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, document := range append(top, documents...) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range mdLink.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(link[1], "://") || strings.HasPrefix(link[1], "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(link[1], "#")
			target := document
			if path != "" {
				target = filepath.Join(filepath.Dir(document), path)
			}
			there, err := os.ReadFile(target)
			if err != nil {
				t.Errorf("%s links to %s: %v", document, link[1], err)
			} else if anchor != "" && !slices.Contains(anchors(string(there)), anchor) {
				t.Errorf("%s links to %s: there is no such heading", document, link[1])
			}
		}
	}
	if links < 20 {
		t.Errorf("the test has checked only %d links; want those in all documents", links)
	}
}

// TestReadmeIsShort limits the README to 10 KB, the length that a newcomer reads.
func TestReadmeIsShort(t *testing.T) {
	info, err := os.Stat("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 10<<10 {
		t.Errorf("README.md has %d bytes; want at most %d: what is longer belongs in docs/", info.Size(), 10<<10)
	}
}

var (
	readmeFigures = regexp.MustCompile(`(?s)<!-- make bench writes from here -->(.*)<!-- to here -->`)
	spread        = regexp.MustCompile(`\([\d.]+ to [\d.]+\)`)
	resumeClaim   = regexp.MustCompile(`waits at the relay for up to (\d+) minutes`)
)

// TestReadmeClaims: each of the README's figures about the relay has its spread, and the
// stated time for which a client waits for its host is the flag's default.
func TestReadmeClaims(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile("docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	block := readmeFigures.FindSubmatch(text)
	if block == nil {
		t.Fatal("README.md lacks the block of figures")
	}
	lines := 0
	for line := range strings.Lines(string(block[1])) {
		if !strings.HasPrefix(line, "- ") {
			continue
		}
		lines++
		if !spread.MatchString(line) {
			t.Errorf("README.md has a figure without its spread: %s", line)
		}
	}
	if lines != 5 {
		t.Errorf("README.md has %d lines with figures; want five", lines)
	}
	claim := resumeClaim.FindSubmatch(text)
	if claim == nil {
		t.Fatal("README.md lacks the time for which a client waits")
	}
	if want := "| `--hold=DURATION` | `AHP_RELAY_HOLD` | `" + string(claim[1]) + "m` |"; !strings.Contains(string(reference), want) {
		t.Errorf("README.md has %q, but docs/reference.md a different default", claim[0])
	}
}

var auditEvent = regexp.MustCompile(`audit\.Line\{\s*Event: "([a-z-]+)"`)

// TestAuditEventsAreListed reads the relay's audit events from its source. SECURITY.md lists each.
func TestAuditEventsAreListed(t *testing.T) {
	text, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| `event` |")
	row, _, _ := strings.Cut(table, "\n")
	found := 0
	err = filepath.WalkDir("gateway", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, event := range auditEvent.FindAllStringSubmatch(string(source), -1) {
			if found++; !strings.Contains(row, "`"+event[1]+"`") {
				t.Errorf("%s audits the event %s, which SECURITY.md does not list", path, event[1])
			}
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d events found, %v; want the relay's", found, err)
	}
}

var (
	mdLabel     = regexp.MustCompile(`(?:^|[^*\w])\*([A-Z][^*\n]{1,60})\*(?:[^*]|$)`)
	ofWalks     = []string{"README.md", "docs/authority.md", "docs/canvases.md", "docs/console.md", "docs/first-host.md", "docs/mcp.md", "docs/notifications.md", "docs/sealed.md", "docs/troubleshooting.md", "docs/tutorial.md"}
	ofPages     = []string{"console/src", "gateway/api/people/pages", "agenthost/scripted"}
	beforeLabel = "'\"`>"
	afterLabel  = "'\"`<$:…"
)

// TestLabelsOfDocuments fails if a document names a button or a part of the console that
// is not there. Documents print labels in italics.
func TestLabelsOfDocuments(t *testing.T) {
	var pages strings.Builder
	for _, root := range ofPages {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			source, err := os.ReadFile(path)
			pages.Write(source)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	labels := 0
	for _, document := range ofWalks {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, label := range mdLabel.FindAllStringSubmatch(mdCode.ReplaceAllString(string(text), ""), -1) {
			labels++
			is := regexp.MustCompile("[" + beforeLabel + "]" + regexp.QuoteMeta(label[1]) + "[" + afterLabel + "]")
			if !is.MatchString(pages.String()) {
				t.Errorf("%s names %q, which no page shows", document, label[1])
			}
		}
	}
	if labels < 30 {
		t.Errorf("the test has checked only %d labels; want those in all documents", labels)
	}
}
