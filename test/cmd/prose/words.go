package main

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
)

// A family is a group of words that writers often use in place of a clearer noun.
type family struct {
	name   string
	words  *regexp.Regexp
	bound  float64 // most words of the family in 1,000 words
	weight float64 // weight of each word in the order of --worst
}

var families = []family{
	{"what", regexp.MustCompile(`^(what)$`), 2, 3},
	{"who", regexp.MustCompile(`^(who|whom|whose|whoever)$`), 1.5, 3},
	{"body", regexp.MustCompile(`^(nobody|somebody|anybody|everybody)$`), 0.5, 3},
	{"say", regexp.MustCompile(`^(say|says|said|tell|tells|told)$`), 2.5, 1.5},
	{"one", regexp.MustCompile(`^(one|ones|others|another)$`), 8, 1.5},
	{"that", regexp.MustCompile(`^(that)$`), 16, 0.7},
	{"of", regexp.MustCompile(`^(of)$`), 22, 0.5},
}

// These are the kinds of prose, which are counted separately.
const (
	goComments   = "Go comments"
	testComments = "Go comments in tests"
	tsComments   = "TypeScript comments"
	documents    = "documents"
	userTexts    = "texts for users"
)

var kinds = []string{goComments, testComments, tsComments, documents, userTexts}

// A passage is a comment, a paragraph or a string.
type passage struct {
	kind, path string
	line       int
	text       string
}

var (
	isTest   = regexp.MustCompile(`_test\.go$|^test/`)
	noTexts  = regexp.MustCompile(`_test\.go$|^(test|agenthost)/`)
	aComment = regexp.MustCompile(`^\s*// ?(.*)`)
	notProse = regexp.MustCompile(`^(\t|    |go:|nolint|eslint|export )`)
	codeLine = regexp.MustCompile(`^\s*(//|import|\*)`)
	goString = regexp.MustCompile("\"((?:[^\"\\\\]|\\\\.){12,})\"|`([^`]{12,})`")
	tsString = regexp.MustCompile(`"((?:[^"\\]|\\.){12,})"|'((?:[^'\\]|\\.){12,})'|>([^<>{}]{12,})<`)
	longWord = regexp.MustCompile(`[a-z]{2,}`)
	word     = regexp.MustCompile(`[a-z']+`)
	markup   = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)|<!--.*?-->")
	sentence = regexp.MustCompile(`[.!?;:]\s+`)
)

// passages returns all prose in the checkout.
func (tree *checkout) passages() (all []passage) {
	for _, f := range tree.files {
		switch {
		case f.generated:
		case strings.HasSuffix(f.path, ".md"):
			all = append(all, paragraphs(f)...)
		case strings.HasSuffix(f.path, ".go"):
			kind := goComments
			if isTest.MatchString(f.path) {
				kind = testComments
			}
			all = append(all, comments(f, kind)...)
			if !noTexts.MatchString(f.path) {
				all = append(all, texts(f, goString)...)
			}
		default:
			all = append(all, comments(f, tsComments)...)
			if !strings.Contains(f.path, "test") {
				all = append(all, texts(f, tsString)...)
			}
		}
	}
	return all
}

// comments returns the comments that begin a line. Successive lines are one passage. It
// leaves out directives and code in comments.
func comments(f file, kind string) (all []passage) {
	var block []string
	begin := 0
	for n, line := range append(strings.Split(f.text, "\n"), "") {
		if m := aComment.FindStringSubmatch(line); m != nil && !notProse.MatchString(m[1]) {
			if len(block) == 0 {
				begin = n + 1
			}
			block = append(block, m[1])
		} else if len(block) > 0 {
			all = append(all, passage{kind, f.path, begin, strings.Join(block, " ")})
			block = nil
		}
	}
	return all
}

// texts returns the strings with at least four words, because users may read these.
func texts(f file, quoted *regexp.Regexp) (all []passage) {
	for n, line := range strings.Split(f.text, "\n") {
		if codeLine.MatchString(line) {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			text := strings.Join(m[1:], "")
			if strings.Contains(text, " ") && len(longWord.FindAllString(text, 4)) == 4 {
				all = append(all, passage{userTexts, f.path, n + 1, text})
			}
		}
	}
	return all
}

// paragraphs returns the paragraphs, lists and tables of a document, without code.
func paragraphs(f file) (all []passage) {
	var block []string
	code, begin := false, 0
	for n, line := range append(strings.Split(f.text, "\n"), "") {
		switch {
		case strings.HasPrefix(strings.TrimLeft(line, " \t"), "```"):
			code = !code
		case code, strings.HasPrefix(line, "    "):
		case strings.TrimSpace(line) != "":
			if len(block) == 0 {
				begin = n + 1
			}
			block = append(block, markup.ReplaceAllString(line, " "))
		case len(block) > 0:
			all = append(all, passage{documents, f.path, begin, strings.Join(block, " ")})
			block = nil
		}
	}
	return all
}

// table writes how many words of each family each kind has in 1,000 words. It returns
// how many of these numbers are above their bounds.
func table(out io.Writer, found []passage) (over int) {
	fmt.Fprintf(out, "%-22s%8s", "per 1,000 words", "words")
	for _, f := range families {
		fmt.Fprintf(out, " %5s≤%-4v", f.name, f.bound)
	}
	fmt.Fprintln(out)
	for _, kind := range kinds {
		words, counts := 0, make([]int, len(families))
		for _, p := range found {
			if p.kind != kind {
				continue
			}
			for _, w := range word.FindAllString(strings.ToLower(p.text), -1) {
				words++
				for i, f := range families {
					if f.words.MatchString(w) {
						counts[i]++
					}
				}
			}
		}
		if words == 0 {
			continue
		}
		fmt.Fprintf(out, "%-22s%8d", kind, words)
		for i, f := range families {
			share, mark := 1000*float64(counts[i])/float64(words), ' '
			if share > f.bound {
				over++
				mark = '!'
			}
			fmt.Fprintf(out, " %8.1f%c ", share, mark)
		}
		fmt.Fprintln(out)
	}
	return over
}

// worstOf returns the n sentences with the highest weight of words from the families.
func worstOf(found []passage, n int) (lines []string) {
	type scored struct {
		score float64
		line  string
	}
	var all []scored
	for _, p := range found {
		for _, s := range sentence.Split(p.text, -1) {
			words := word.FindAllString(strings.ToLower(s), -1)
			if len(words) < 5 {
				continue
			}
			score := 0.0
			for _, w := range words {
				for _, f := range families {
					if f.words.MatchString(w) {
						score += f.weight
					}
				}
			}
			all = append(all, scored{score / math.Sqrt(float64(len(words))), fmt.Sprintf("%s:%d: %.300s", p.path, p.line, s)})
		}
	}
	slices.SortStableFunc(all, func(a, b scored) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	for _, s := range all[:min(n, len(all))] {
		lines = append(lines, s.line)
	}
	return lines
}
