package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// ofServices matches variables that Kubernetes sets for services. A service's name can
// begin like a program's variables.
var ofServices = regexp.MustCompile(`_(SERVICE_(HOST|PORT)(_.*)?|PORT(_[0-9]+_.*)?)$`)

// mistyped returns a sentence for each variable in the environment that looks like a
// setting of the program, but is none.
func (p Program) mistyped(model *kong.Node, environ []string) (list []string) {
	known := envsOf(model)
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, p.Prefix+"_") && !slices.Contains(known, name) && !ofServices.MatchString(name) {
			list = append(list, fmt.Sprintf("environment variable %s is no setting of %s%s", name, p.Name, p.suggestion(name, known)))
		}
	}
	slices.Sort(list)
	return list
}

func envsOf(n *kong.Node) (names []string) {
	for _, f := range n.Flags {
		names = append(names, f.Envs...)
	}
	for _, c := range n.Children {
		names = append(names, envsOf(c)...)
	}
	return names
}

// suggestion compares the names without their common prefix.
func (p Program) suggestion(name string, known []string) string {
	short := make([]string, len(known))
	for i, k := range known {
		short[i] = strings.TrimPrefix(k, p.Prefix+"_")
	}
	said := suggestion(strings.TrimPrefix(name, p.Prefix+"_"), short)
	return strings.Replace(said, "mean ", "mean "+p.Prefix+"_", 1)
}

// suggestion returns a question for the known name that is most like a name, or "" if
// none is like it.
func suggestion(name string, known []string) string {
	best, least := "", len(name)/3+1
	for _, candidate := range known {
		if d := distance(name, candidate); d < least {
			best, least = candidate, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// sensible removes from kong's error about an unknown flag the suggestions that begin with a different letter. Kong compares a few
// letters only, and suggests --version for --session.
func sensible(text string) string {
	said, guesses, _ := strings.Cut(text, ", did you mean ")
	name, unknown := strings.CutPrefix(said, "unknown flag --")
	if !unknown || name == "" {
		return text
	}
	var like []string
	for _, guess := range inQuotes.FindAllString(guesses, -1) {
		if strings.HasPrefix(guess, `"--`+name[:1]) {
			like = append(like, strings.Trim(guess, `"`))
		}
	}
	if len(like) == 0 {
		return said
	}
	return said + "; did you mean " + strings.Join(like, " or ") + "?"
}

var inQuotes = regexp.MustCompile(`"[^"]*"`)

// distance returns the number of inserted, removed and changed bytes between two names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, changed)
		}
	}
	return row[len(b)]
}
