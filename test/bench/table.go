package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// WriteTable writes the machine's description and a Markdown table with the figures. A
// figure with several comparisons has one line.
func WriteTable(w io.Writer, m Machine, figures []Figure) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", m)
	b.WriteString("| part | work | median (spread) | beside it | target | met | orientation | what it means |\n|---|---|---|---|---|---|---|---|\n")
	for len(figures) > 0 {
		n := 1
		for n < len(figures) && figures[n].sameAs(&figures[0]) {
			n++
		}
		line(&b, figures[:n])
		figures = figures[n:]
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// sameAs reports whether two figures differ only in their comparisons.
func (f *Figure) sameAs(g *Figure) bool {
	return f.Part == g.Part && f.Work == g.Work && f.Unit == g.Unit && f.Value == g.Value
}

// line writes one line for figures that differ only in their comparisons.
func line(b *strings.Builder, figures []Figure) {
	var beside, targets, met, near []string
	for _, f := range figures {
		if f.Comparison != nil {
			text := fmt.Sprintf("%s %s", f.Comparison.Name, digits(f.Comparison.Value))
			if f.Ratio != nil {
				text += fmt.Sprintf(" (%s×)", digits(*f.Ratio))
			}
			beside = append(beside, text)
		}
		if f.Orientation != "" && !slices.Contains(near, f.Orientation) {
			near = append(near, f.Orientation)
		}
		if f.Target == "" || slices.Contains(targets, f.Target) {
			continue
		}
		targets = append(targets, f.Target)
		met = append(met, map[bool]string{true: "yes", false: "**no**"}[f.Met])
	}
	f := figures[0]
	fmt.Fprintf(b, "| `%s` | %s | %s %s (%s–%s) | %s | %s | %s | %s | %s |\n", f.Part, f.Work, digits(f.Value), f.Unit,
		digits(f.Spread.Low), digits(f.Spread.High), strings.Join(beside, "; "), strings.Join(targets, "; "), strings.Join(met, "; "), strings.Join(near, "; "), f.Meaning)
}

// digits returns a number with three significant digits.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	text := strconv.FormatFloat(v, 'f', min(decimals, 6), 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
