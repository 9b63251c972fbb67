// Command plot draws the stored results of make bench: for each part a picture with its
// ratios in the last runs on each machine. It also writes a page with all pictures.
package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg"
)

// A record has the members of package bench's record that are drawn.
type record struct {
	Machine struct {
		CPU    string `json:"cpu"`
		Cores  int    `json:"cores"`
		Kernel string `json:"kernel"`
		Load   string `json:"load"`
	} `json:"machine"`
	Commit  string    `json:"commit"`
	Date    time.Time `json:"date"`
	Figures []figure  `json:"figures"`

	file string
}

type figure struct {
	Part       string `json:"part"`
	Work       string `json:"work"`
	Comparison *struct {
		Name string `json:"name"`
	} `json:"comparison"`
	Ratio  *float64 `json:"ratio"`
	Spread *struct {
		Low  float64 `json:"low"`
		High float64 `json:"high"`
	} `json:"ratioSpread"`
}

// label returns the name of a run in a legend.
func (r *record) label() string { return r.Date.Format(time.DateOnly) + " " + r.Commit }

// has reports whether a run has a drawn figure of a part.
func (r *record) has(part string) bool {
	return slices.ContainsFunc(r.Figures, func(f figure) bool { return f.Part == part && f.drawn() })
}

// row returns the name of a figure's row in a picture.
func (f *figure) row() string { return f.Work + " / " + f.Comparison.Name }

// drawn reports whether a figure has a ratio above 0, because the axis has no 0.
func (f *figure) drawn() bool { return f.Comparison != nil && f.Ratio != nil && *f.Ratio > 0 }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plot DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// most is the number of runs in a picture: the last runs that have the part.
const most = 6

func run(dir string) error {
	records, err := read(dir)
	if err != nil {
		return err
	}
	parts := names(records, func(f *figure) string { return f.Part })
	old, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil {
		return err
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	for _, part := range parts {
		having := slices.DeleteFunc(slices.Clone(records), func(r *record) bool { return !r.has(part) })
		if err := picture(filepath.Join(dir, part+".svg"), part, having[max(0, len(having)-most):]); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return os.WriteFile(filepath.Join(dir, "README.md"), []byte(page(records, parts)), 0o644)
}

// read returns all records in a directory, the oldest first.
func read(dir string) (records []*record, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r := &record{file: filepath.Base(file)}
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b *record) int { return a.Date.Compare(b.Date) })
	return records, nil
}

// names returns the names that name gives to drawn figures, each once, those of the last
// run first. A figure with the name "" is left out.
func names(records []*record, name func(*figure) string) (list []string) {
	for _, r := range slices.Backward(records) {
		for i := range r.Figures {
			if f := &r.Figures[i]; f.drawn() && name(f) != "" && !slices.Contains(list, name(f)) {
				list = append(list, name(f))
			}
		}
	}
	return list
}

// colors are the colours of runs. The last run has the first, which stands out.
var colors = []color.Color{
	color.RGBA{0xd0, 0x3a, 0x2b, 0xff}, color.RGBA{0x2b, 0x6c, 0xb0, 0xff}, color.RGBA{0x63, 0x8c, 0x3a, 0xff},
	color.RGBA{0x8a, 0x5a, 0xa8, 0xff}, color.RGBA{0xb0, 0x80, 0x20, 0xff}, color.RGBA{0x80, 0x80, 0x80, 0xff},
}

// picture draws the ratios of a part: a row for each figure and comparison, in it a
// mark for each run, and a line for the spread of the run's rounds.
func picture(file, part string, records []*record) error {
	rows := names(records, func(f *figure) string {
		if f.Part != part {
			return ""
		}
		return f.row()
	})
	slices.Reverse(rows) // the axis begins at the bottom
	p := plot.New()
	p.Title.Text = part + ": times of what it is compared with"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ratioTicks{}
	p.NominalY(rows...)
	p.Y.Tick.Label.Font.Size, p.Y.Padding = vg.Points(9), vg.Points(30) // a reader's fonts may be wider than those measured here
	p.Legend.Top, p.Legend.XOffs = true, vg.Points(-50)
	low, high := 0.8, 1.25
	for back, r := range slices.Backward(records) {
		back = len(records) - 1 - back
		shift := 0.12 * float64(back)
		var points plotter.XYs
		for i := range r.Figures {
			f := &r.Figures[i]
			if f.Part != part || !f.drawn() {
				continue
			}
			y := float64(slices.Index(rows, f.row())) - shift
			points = append(points, plotter.XY{X: *f.Ratio, Y: y})
			low, high = min(low, *f.Ratio), max(high, *f.Ratio)
			if f.Spread != nil && f.Spread.Low > 0 {
				low, high = min(low, f.Spread.Low), max(high, f.Spread.High)
				if err := addLine(p, colors[back], f.Spread.Low, y, f.Spread.High, y); err != nil {
					return err
				}
			}
		}
		marks, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		marks.GlyphStyle = draw.GlyphStyle{Color: colors[back], Radius: vg.Points(3), Shape: draw.CircleGlyph{}}
		p.Add(marks)
		p.Legend.Add(r.label(), marks)
	}
	bottom, top := -1.0, float64(len(rows)+min(len(records), 2)) // with room for the legend
	if err := addLine(p, color.Black, 1, bottom, 1, top); err != nil {
		return err
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = low*0.9, high*1.1, bottom, top
	p.Add(plotter.NewGrid())
	return p.Save(vg.Points(900), vg.Points(110+22*float64(len(rows)+len(records))), file)
}

func addLine(p *plot.Plot, c color.Color, x1, y1, x2, y2 float64) error {
	line, err := plotter.NewLine(plotter.XYs{{X: x1, Y: y1}, {X: x2, Y: y2}})
	if err == nil {
		line.Color = c
		p.Add(line)
	}
	return err
}

// ratioTicks puts ticks at 1, 2 and 5 times each power of ten.
type ratioTicks struct{}

// Ticks implements [plot.Ticker].
func (ratioTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * math.Pow(10, power); v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%.4g×", v)})
			}
		}
	}
	return ticks
}

// page returns the text of the page with the pictures.
func page(records []*record, parts []string) string {
	var b strings.Builder
	b.WriteString("# Benchmark runs\n\n`make bench ARGS=--record` adds a run and writes this page; `make bench ARGS=plot` only writes it. " +
		"[performance.md](../performance.md) explains the figures. Machines differ, and so do hours, so only ratios within a run are comparable. " +
		"The drawings show these ratios: the median of the rounds, and their spread. A point left of the line is below its peer, a point right of the line above.\n\n" +
		"| run | commit | machine | load before |\n|---|---|---|---|\n")
	for _, r := range slices.Backward(records) {
		fmt.Fprintf(&b, "| [%s](%s) | %s | %s, %d cores, %s | %s |\n", r.Date.Format(time.DateOnly), r.file, r.Commit, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Load)
	}
	for _, part := range parts {
		fmt.Fprintf(&b, "\n## %s\n\n![ratios of %s](%s.svg)\n", part, part, part)
	}
	return b.String()
}
