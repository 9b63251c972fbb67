package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Record is the stored result of a run. A part that runs again on the same machine,
// commit and day replaces its former result.
type Record struct {
	Machine Machine        `json:"machine"`
	Commit  string         `json:"commit"` // a trailing "+" means that there were uncommitted changes
	Date    time.Time      `json:"date"`
	Parts   []RecordedPart `json:"parts"`
	Figures []Figure       `json:"figures"`
}

// A RecordedPart has the duration of a part.
type RecordedPart struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Add replaces the figures of the given parts in the record, and keeps the order of the
// parts.
func (r *Record) Add(parts []RecordedPart, figures []Figure) {
	again := func(name string) bool {
		return slices.ContainsFunc(parts, func(p RecordedPart) bool { return p.Name == name })
	}
	place := func(name string) int { return slices.Index(Names(), name) }
	r.Parts = append(slices.DeleteFunc(r.Parts, func(p RecordedPart) bool { return again(p.Name) }), parts...)
	r.Figures = append(slices.DeleteFunc(r.Figures, func(f Figure) bool { return again(f.Part) }), figures...)
	slices.SortStableFunc(r.Parts, func(a, b RecordedPart) int { return place(a.Name) - place(b.Name) })
	slices.SortStableFunc(r.Figures, func(a, b Figure) int { return place(a.Part) - place(b.Part) })
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// Name returns the name of the record's file, which consists of day, commit and
// machine.
func (r *Record) Name() string {
	machine := strings.Trim(notInName.ReplaceAllString(strings.ToLower(r.Machine.CPU), "-"), "-")
	return fmt.Sprintf("%s-%s-%s-%d.json", r.Date.UTC().Format(time.DateOnly), strings.TrimSuffix(r.Commit, "+"), machine, r.Machine.Cores)
}

// WriteJSON writes the record.
func (r *Record) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Save writes the record into a file.
func (r *Record) Save(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(r.WriteJSON(f), f.Close())
}

// ReadRecord reads a record that Save has written. If the file does not exist, the
// error is [os.ErrNotExist].
func ReadRecord(file string) (*Record, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &Record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// NewestRecord reads the newest record in a directory. It returns nil if there is no
// record.
func NewestRecord(dir string) (*Record, error) {
	records, err := readRecords(dir)
	if len(records) == 0 {
		return nil, err
	}
	return records[0], nil
}

// NewestParts reads all records in a directory, the newest first. It keeps each part
// only in the newest record with this part, and leaves out records that then have no
// part.
func NewestParts(dir string) ([]*Record, error) {
	records, err := readRecords(dir)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, r := range records {
		r.Parts = slices.DeleteFunc(r.Parts, func(p RecordedPart) bool { return seen[p.Name] })
		r.Figures = slices.DeleteFunc(r.Figures, func(f Figure) bool { return seen[f.Part] })
		for _, p := range r.Parts {
			seen[p.Name] = true
		}
	}
	return slices.DeleteFunc(records, func(r *Record) bool { return len(r.Parts) == 0 }), nil
}

// readRecords reads all records in a directory, newest first.
func readRecords(dir string) ([]*Record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var records []*Record
	for _, file := range files {
		r, err := ReadRecord(file)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	slices.SortStableFunc(records, func(a, b *Record) int { return b.Date.Compare(a.Date) })
	return records, nil
}

// ThisCommit returns the commit that is checked out in a directory, or "unknown".
func ThisCommit(ctx context.Context, dir string) string {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=7", "HEAD")
	if err != nil {
		return "unknown"
	}
	// Changes in documents change no figure.
	if changed, err := git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md", ":!docs"); err != nil || changed != "" {
		commit += "+"
	}
	return commit
}

// A readmeLine is a line in README that contains figures.
type readmeLine struct {
	text string // format with a verb for each number
	of   []number
}

// A number is a value in README that comes from a figure.
type number struct {
	part, work string // part, and a text that the figure's work contains
	beside     string // name of a comparison, whose value is taken; "": the figure's own value
	ratio      bool   // the ratio of value and comparison is taken
	inverse    bool   // the inverse of this ratio is taken
}

var readmeLines = []readmeLine{
	{"50 viewers of one chat, 500 actions of 1 KB: %s MB leave the host's machine; through a tunnel %s MB.",
		[]number{{part: "uplink", work: "through the relay's port"}, {part: "uplink", work: "through the relay's port", beside: sshName}}},
	{"A request takes %s ms more than straight at the host.",
		[]number{{part: "latency", work: "request and answer of 512 B, added p50"}}},
	{"One core of the relay delivers %s million messages a second to 100 viewers of each, %s times what nats-server's WebSockets do.",
		[]number{{part: "fanout", work: "100 clients, saturated"}, {part: "fanout", work: "100 clients, saturated", beside: natsName, ratio: true}}},
	{"A thousand viewers cost the host's machine %s times as much as a single viewer; a thousand direct connections cost %s times as much as those viewers.",
		[]number{{part: "audience", work: "of host and host-agent", beside: "one viewer", ratio: true}, {part: "audience", work: "of the host's machine", beside: directName, ratio: true, inverse: true}}},
	{"%s KiB of the relay and %s KiB of the host-agent for a client on which nothing happens.",
		[]number{{part: "memory", work: "each at the relay"}, {part: "memory", work: "each at the host-agent"}}},
}

// find returns the number as a text. ok is false if no figure has it.
func (n number) find(figures []Figure) (text string, ok bool) {
	for _, f := range figures {
		c := f.Comparison
		if f.Part != n.part || !strings.Contains(f.Work, n.work) || n.beside != "" && (c == nil || c.Name != n.beside) {
			continue
		}
		switch {
		case n.beside == "":
			return digits(f.Value) + between(&f.Spread), true
		case !n.ratio:
			return digits(c.Value), true
		case f.Ratio == nil:
			return "", false
		case n.inverse:
			spread := f.RatioSpread
			if spread != nil {
				spread = &Spread{1 / spread.High, 1 / spread.Low}
			}
			return digits(1 / *f.Ratio) + between(spread), true
		}
		return digits(*f.Ratio) + between(f.RatioSpread), true
	}
	return "", false
}

// between returns a spread in the form for README, or "" for nil.
func between(s *Spread) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf(" (%s to %s)", digits(s.Low), digits(s.High))
}

// ReadmeLines returns README's lines with their numbers. It returns an error if a
// figure is missing.
func ReadmeLines(figures []Figure) ([]byte, error) {
	var b strings.Builder
	for _, l := range readmeLines {
		var values []any
		for _, n := range l.of {
			text, ok := n.find(figures)
			if !ok {
				return nil, fmt.Errorf("the record has no figure of %q in the part %s", n.work, n.part)
			}
			values = append(values, text)
		}
		fmt.Fprintf(&b, "- "+l.text+"\n", values...)
	}
	return []byte(b.String()), nil
}
