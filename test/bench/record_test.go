package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func figureOf(part, work string, value float64) Figure {
	f := newFigure(work, "ms", series{value})
	f.Part = part
	return f
}

// TestRecordReplacesRepeatedParts adds a part twice. The second result replaces the
// first, and the other parts stay.
func TestRecordReplacesRepeatedParts(t *testing.T) {
	dir := t.TempDir()
	r := &Record{Machine: Machine{CPU: "AMD EPYC (2)", Cores: 2}, Commit: "abc1234+", Date: time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)}
	r.Add([]RecordedPart{{"gate", 3}, {"fanout", 4}}, []Figure{figureOf("gate", "a", 1), figureOf("fanout", "b", 2)})
	if want := "2026-11-22-abc1234-amd-epyc-2-2.json"; r.Name() != want {
		t.Errorf("Name() = %q; want %q", r.Name(), want)
	}
	if err := r.Save(filepath.Join(dir, r.Name())); err != nil {
		t.Fatal(err)
	}
	old := &Record{Date: r.Date.Add(-time.Hour)}
	if err := old.Save(filepath.Join(dir, "old.json")); err != nil {
		t.Fatal(err)
	}
	got, err := NewestRecord(dir)
	if err != nil || got.Commit != r.Commit || got.Machine != r.Machine || !got.Date.Equal(r.Date) {
		t.Fatalf("NewestRecord() = %+v, %v; want %+v", got, err, r)
	}
	got.Add([]RecordedPart{{"gate", 5}}, []Figure{figureOf("gate", "c", 3)})
	if want := []RecordedPart{{"fanout", 4}, {"gate", 5}}; !slices.Equal(got.Parts, want) {
		t.Errorf("parts %v; want %v", got.Parts, want)
	}
	if len(got.Figures) != 2 || got.Figures[0].Work != "b" || got.Figures[1].Work != "c" {
		t.Errorf("the record's figures are %+v; want b and c", got.Figures)
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewestRecord(dir); err == nil {
		t.Error("NewestRecord reads half a record; want an error")
	}
	if none, err := NewestRecord(t.TempDir()); none != nil || err != nil {
		t.Errorf("NewestRecord of an empty folder = %v, %v; want nil", none, err)
	}
}

// TestEachPartComesFromItsNewestRecord reads records of several runs. Each part comes
// from the newest run that has measured it.
func TestEachPartComesFromItsNewestRecord(t *testing.T) {
	dir := t.TempDir()
	day := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for i, parts := range [][]string{{"gate", "fanout"}, {"gate"}, {"fanout"}, {"fanout"}} {
		r := &Record{Commit: fmt.Sprint(i), Date: day.AddDate(0, 0, i)}
		for _, name := range parts {
			r.Add([]RecordedPart{{name, 1}}, []Figure{figureOf(name, fmt.Sprint(name, i), 1)})
		}
		if err := r.Save(filepath.Join(dir, r.Name())); err != nil {
			t.Fatal(err)
		}
	}
	records, err := NewestParts(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		for _, f := range r.Figures {
			got = append(got, r.Commit+" "+f.Work)
		}
	}
	if want := []string{"3 fanout3", "1 gate1"}; !slices.Equal(got, want) {
		t.Errorf("figures %q; want %q", got, want)
	}
}

// TestTimeLeftNeedsAllDurations estimates the duration of parts. Without the duration
// of a part, there is no estimate.
func TestTimeLeftNeedsAllDurations(t *testing.T) {
	r := &Record{Parts: []RecordedPart{{"fanout", 40}, {"gate", 30}}}
	list, err := chosen([]string{"gate", "fanout"})
	if err != nil || len(list) != 2 || list[0].name != "fanout" {
		t.Fatalf("chosen = %v, %v; want both parts, fanout first", list, err)
	}
	if got := r.left(list); got != "; about 1m10s left" {
		t.Errorf("the remaining time is %q; want about 1m10s", got)
	}
	if all, _ := chosen(nil); r.left(all) != "" || slices.ContainsFunc(all, func(p part) bool { return p.asked }) {
		t.Error("the remaining time without known durations must be empty, and the default parts must not include one that must be named")
	}
}

// TestReadmeLinesNeedEveryFigure leaves out a figure. ReadmeLines must return an error.
func TestReadmeLinesNeedEveryFigure(t *testing.T) {
	beside := func(f Figure, name string, other float64) Figure {
		return f.beside(name, series{f.Value}, series{other})
	}
	figures := []Figure{
		beside(figureOf("uplink", "50 clients × 500 actions of 1 KB, through the relay's port", 0.2), sshName, 26),
		figureOf("latency", "request and answer of 512 B, added p50", 0.3),
		beside(figureOf("fanout", "100 clients, saturated", 3), natsName, 1),
		beside(figureOf("audience", "1000 viewers at 200 actions/s: of host and host-agent", 100), "one viewer", 100),
		beside(figureOf("audience", "1000 viewers at 200 actions/s: of the host's machine", 100), directName, 1000),
		figureOf("memory", "5000 idle clients of one host, each at the relay", 12),
		figureOf("memory", "5000 idle clients of one host, each at the host-agent", 11),
	}
	lines, err := ReadmeLines(figures)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.2 (0.2 to 0.2) MB leave", "tunnel 26 MB", "0.3 (0.3 to 0.3) ms more", "3 (3 to 3) million", "3 (3 to 3) times", " 1 (1 to 1) times as much as a single viewer", "cost 10 (10 to 10) times as much", "12 (12 to 12) KiB", "11 (11 to 11) KiB"} {
		if !strings.Contains(string(lines), want) {
			t.Errorf("the lines lack %q:\n%s", want, lines)
		}
	}
	for i := range figures {
		if _, err := ReadmeLines(slices.Delete(slices.Clone(figures), i, i+1)); err == nil {
			t.Errorf("ReadmeLines without %s succeeds; want an error", figures[i].Work)
		}
	}
}
