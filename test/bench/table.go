package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// WriteJSON writes figures as an array.
func WriteJSON(w io.Writer, figures []Figure) error {
	if figures == nil {
		figures = []Figure{}
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(figures)
}

// WriteTable writes figures as a table in Markdown, below the facts about the
// machine.
func WriteTable(w io.Writer, m Machine, figures []Figure) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", m)
	b.WriteString("| part | work | median (spread) | beside it | ratio | target | met |\n|---|---|---|---|---|---|---|\n")
	for _, f := range figures {
		beside, ratio, target, met := "", "", "", ""
		if f.Comparison != nil {
			beside = fmt.Sprintf("%s: %s", f.Comparison.Name, digits(f.Comparison.Value))
		}
		if f.Ratio != nil {
			ratio = digits(*f.Ratio) + "×"
		}
		if f.Target != "" {
			target, met = f.Target, "**no**"
			if f.Met {
				met = "yes"
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s %s (%s–%s) | %s | %s | %s | %s |\n", f.Part, f.Work,
			digits(f.Value), f.Unit, digits(f.Spread.Low), digits(f.Spread.High), beside, ratio, target, met)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// digits writes a number with three digits that mean something.
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
