package bench

import (
	"fmt"
	"slices"
)

// A series has a value for each round.
type series []float64

// median returns the middle value, or the mean of the two middle values.
func (s series) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// over returns the ratios of the values in s and other. It leaves out a pair with a
// negative value or without a positive divisor, because a difference may be negative.
func (s series) over(other series) series {
	var ratios series
	for i := range min(len(s), len(other)) {
		if other[i] > 0 && s[i] >= 0 {
			ratios = append(ratios, s[i]/other[i])
		}
	}
	return ratios
}

// less returns the differences of the values in s and other.
func (s series) less(other series) series {
	var rest series
	for i := range min(len(s), len(other)) {
		rest = append(rest, s[i]-other[i])
	}
	return rest
}

// A Figure is a line in the table of results.
type Figure struct {
	Part        string      `json:"part"`
	Work        string      `json:"work"`
	Value       float64     `json:"value"`
	Unit        string      `json:"unit"`
	Comparison  *Comparison `json:"comparison"`            // nil: the figure has no comparison
	Ratio       *float64    `json:"ratio"`                 // value divided by the comparison's value; nil without a comparison
	RatioSpread *Spread     `json:"ratioSpread,omitempty"` // lowest and highest ratio of a round, without the outer eighths
	Target      string      `json:"target"`                // required ratio, or a required value that is the same on every machine; "": none
	Met         bool        `json:"met"`                   // the figure meets its target; true without a target
	Spread      Spread      `json:"spread"`

	// Orientation is the value that the figure should have on the machine for which the
	// targets were made. A run on another machine need not reach it. "": none.
	Orientation string `json:"orientation,omitempty"`

	Meaning string `json:"-"` // what the figure means for users; "": only developers need it
}

// A Comparison is the result of the same work done by a different system.
type Comparison struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// A Spread is the lowest and the highest value of the rounds.
type Spread struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// newFigure returns a figure without comparison and target.
func newFigure(work, unit string, values series) Figure {
	return Figure{
		Work: work, Unit: unit, Value: values.median(), Met: true,
		Spread: Spread{slices.Min(values), slices.Max(values)},
	}.withRatio(nil)
}

func (f Figure) withRatio(ratios series) Figure {
	f.Ratio, f.RatioSpread = nil, nil
	if len(ratios) > 0 {
		r := ratios.median()
		f.Ratio = &r
		sorted := slices.Sorted(slices.Values(ratios))
		odd := len(sorted) / 8 // number of ratios to leave out at each end
		f.RatioSpread = &Spread{sorted[odd], sorted[len(sorted)-1-odd]}
	}
	return f
}

// beside adds a comparison to the figure. values and others must come from the same
// rounds.
func (f Figure) beside(name string, values, others series) Figure {
	f.Comparison = &Comparison{name, others.median()}
	return f.withRatio(values.over(others))
}

// means adds a text that explains the figure to users.
func (f Figure) means(text string) Figure {
	f.Meaning = text
	return f
}

// A target is the value, or with a comparison the ratio, that a figure must have. A
// value that depends on the machine can only be an orientation.
type target struct {
	ofRatio bool
	atLeast bool
	limit   float64
}

// text returns the target as a text with the unit.
func (t target) text(unit string) string {
	sign := "≤"
	if t.atLeast {
		sign = "≥"
	}
	if t.ofRatio {
		return fmt.Sprintf("%s %g×", sign, t.limit)
	}
	return fmt.Sprintf("%s %g %s", sign, t.limit, unit)
}

func atMost(limit float64) target       { return target{limit: limit} }
func atLeast(limit float64) target      { return target{limit: limit, atLeast: true} }
func ratioAtMost(limit float64) target  { return target{limit: limit, ofRatio: true} }
func ratioAtLeast(limit float64) target { return target{limit: limit, ofRatio: true, atLeast: true} }

// want adds a target to the figure, and compares the figure with it.
func (f Figure) want(t target) Figure {
	f.Target = t.text(f.Unit)
	value := f.Value
	if t.ofRatio {
		if f.Met = f.Ratio != nil; !f.Met {
			return f
		}
		value = *f.Ratio
	}
	if t.atLeast {
		f.Met = value >= t.limit
	} else {
		f.Met = value <= t.limit
	}
	return f
}

// orient adds an orientation to the figure.
func (f Figure) orient(t target) Figure {
	f.Orientation = t.text(f.Unit)
	return f
}
