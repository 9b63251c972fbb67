package bench

import (
	"fmt"
	"slices"
)

// A series is a figure's values, in the order of rounds.
type series []float64

// median returns the middle value, or the mean of the two in the middle.
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

// over returns the ratio of each value to its counterpart. A pair with a negative
// value or no positive divisor is omitted: differences may be below zero.
func (s series) over(other series) series {
	var ratios series
	for i := range min(len(s), len(other)) {
		if other[i] > 0 && s[i] >= 0 {
			ratios = append(ratios, s[i]/other[i])
		}
	}
	return ratios
}

// less returns the difference of each value and its counterpart.
func (s series) less(other series) series {
	var rest series
	for i := range min(len(s), len(other)) {
		rest = append(rest, s[i]-other[i])
	}
	return rest
}

// A Figure is a line of the result.
type Figure struct {
	Part        string      `json:"part"`
	Work        string      `json:"work"`
	Value       float64     `json:"value"`
	Unit        string      `json:"unit"`
	Comparison  *Comparison `json:"comparison"`            // nil: there is none
	Ratio       *float64    `json:"ratio"`                 // value divided by comparison; nil without a comparison
	RatioSpread *Spread     `json:"ratioSpread,omitempty"` // of three quarters of the rounds' ratios
	Target      string      `json:"target"`                // a ratio, or a value that is equal on any machine; "": none
	Met         bool        `json:"met"`                   // true without a target
	Spread      Spread      `json:"spread"`

	// Orientation is the figure's intended value on the machine that the targets were
	// designed for. Runs on different machines are not judged by it. "": none.
	Orientation string `json:"orientation,omitempty"`

	Meaning string `json:"-"` // for users, in the table; "": the figure is for developers
}

// A Comparison is the result of the same work done by a different system.
type Comparison struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// A Spread is the least and the greatest value of the rounds.
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
		odd := len(sorted) / 8 // at each end
		f.RatioSpread = &Spread{sorted[odd], sorted[len(sorted)-1-odd]}
	}
	return f
}

// beside sets the figure's comparison. The values and the comparison's values come
// from the same rounds.
func (f Figure) beside(name string, values, others series) Figure {
	f.Comparison = &Comparison{name, others.median()}
	return f.withRatio(values.over(others))
}

// means sets a figure's meaning for users.
func (f Figure) means(text string) Figure {
	f.Meaning = text
	return f
}

// A target is a figure's required value: a ratio if there is a comparison. A value
// that depends on the machine serves as orientation only.
type target struct {
	ofRatio bool
	atLeast bool
	limit   float64
}

// text writes a target of a figure.
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

// want sets the target.
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

// orient sets the figure's orientation.
func (f Figure) orient(t target) Figure {
	f.Orientation = t.text(f.Unit)
	return f
}
