package faults

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// WriteTable writes results as a table in Markdown.
func WriteTable(w io.Writer, results []Result) error {
	var b strings.Builder
	b.WriteString("| where | fault | sent | received | in flight | lost | repeated | closed with | told after | longest pause | whole after |\n")
	b.WriteString("|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %s | %s | %s | %s |\n",
			r.Row.Place, r.Row.Fault, r.Sent, r.Received, r.InFlight, r.Lost, r.Repeated,
			r.closes(), orNone(r.Told), seconds(r.Pause), seconds(r.Whole))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Result) closes() string {
	var list []string
	for _, code := range slices.SortedFunc(maps.Keys(r.Closes), cmp.Compare[int]) {
		list = append(list, fmt.Sprintf("%s ×%d", codeName(code), r.Closes[code]))
	}
	return cmp.Or(strings.Join(list, ", "), "–")
}

func orNone(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return seconds(d)
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// String returns the result in one line, followed by a line for each broken promise.
func (r Result) String() string {
	s := fmt.Sprintf("sent %d, received %d, in flight %d, lost %d, repeated %d; closed: %s; told %s, pause %s, whole %s",
		r.Sent, r.Received, r.InFlight, r.Lost, r.Repeated, r.closes(), orNone(r.Told), seconds(r.Pause), seconds(r.Whole)) + r.Note
	for _, b := range r.Broken {
		s += "\n    BROKEN: " + b
	}
	return s
}
