package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"ahprelay/ahp"
)

// A pattern names hosts, channels or methods in a token: the text itself, or
// with * in it, which stands for any characters, none included. Nothing else is
// special, and case counts:
//
//	laptop         that host
//	build-*        hosts whose names begin so
//	mock:/254dbb91 that session
//	ahp-session:/* all sessions of that scheme
//	*              everything
//
// A list of patterns takes what one of them takes.

// Bounds of patterns.
const (
	// MaxPatterns is how many patterns a list may have.
	MaxPatterns = 64

	// MaxPatternLen is the limit of a pattern's length, in bytes.
	MaxPatternLen = 1024

	// maxStars bounds what it costs to try a pattern.
	maxStars = 8
)

// All is the pattern that takes everything.
const All = "*"

// MatchesAny reports whether one of the patterns takes text.
func MatchesAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Matches(p, text) })
}

// Matches reports whether a pattern takes text.
func Matches(pattern, text string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for {
		// Up to the next star, the first place that fits is as good as any
		// later one; what stands behind the last star is the end of the text.
		part, more, found := strings.Cut(rest, "*")
		if !found {
			return strings.HasSuffix(text, part)
		}
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(part):], more
	}
}

// CheckPatterns reports why a list is none of patterns. What is what they are
// for, in errors.
func CheckPatterns(what string, patterns []string) error {
	if len(patterns) > MaxPatterns {
		return fmt.Errorf("%d patterns of %ss; want at most %d", len(patterns), what, MaxPatterns)
	}
	for _, p := range patterns {
		if err := checkPattern(p); err != nil {
			return fmt.Errorf("pattern of a %s: %w", what, err)
		}
	}
	return nil
}

func checkPattern(p string) error {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }
	switch {
	case p == "":
		return errors.New("empty")
	case len(p) > MaxPatternLen:
		return fmt.Errorf("%d bytes long; want at most %d", len(p), MaxPatternLen)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, odd):
		return errors.New("has characters that cannot be printed, or spaces")
	case strings.Count(p, "*") > maxStars:
		return fmt.Errorf("%q has more than %d *", p, maxStars)
	}
	return nil
}

// checkHosts reports why a list is none of patterns of hosts' names.
func checkHosts(hosts []string) error {
	if len(hosts) == 0 {
		return errors.New("no hosts")
	}
	if err := CheckPatterns("host", hosts); err != nil {
		return err
	}
	for _, p := range hosts {
		name := strings.ReplaceAll(p, "*", "")
		if name == "" { // nothing but stars
			continue
		}
		if err := ahp.CheckName("host", name); err != nil {
			return err
		}
	}
	return nil
}
