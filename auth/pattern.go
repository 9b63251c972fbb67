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

// A pattern names hosts, channels or methods in a token. The character * stands for any
// characters, including none. No other character is special, and case matters:
//
//	laptop         that host
//	build-*        hosts with that prefix
//	mock:/254dbb91 that session
//	ahp-session:/* all sessions of that scheme
//	*              everything
//
// A list of patterns matches if any pattern in it matches.

// Bounds of patterns.
const (
	// MaxPatterns bounds the patterns in a list.
	MaxPatterns = 64

	// MaxPatternLen bounds a pattern's length, in bytes.
	MaxPatternLen = 1024

	// maxStars bounds the stars in a pattern, and thus the cost of matching it.
	maxStars = 8
)

// All is the pattern that matches everything.
const All = "*"

// MatchesAny reports whether one of the patterns matches text.
func MatchesAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Matches(p, text) })
}

// Matches reports whether a pattern matches text.
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
		// Up to the next star, the first match is as good as any later one. The part
		// after the last star must end the text.
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

// CheckPatterns returns an error for an invalid list of patterns. The argument what names
// the patterns' kind in errors.
func CheckPatterns(what string, patterns []string) error {
	if len(patterns) > MaxPatterns {
		return fmt.Errorf("%d %s patterns; want at most %d", len(patterns), what, MaxPatterns)
	}
	for _, p := range patterns {
		if err := checkPattern(p); err != nil {
			return fmt.Errorf("%s pattern %.100q: %w", what, p, err)
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
		return errors.New("contains spaces or unprintable characters")
	case strings.Count(p, "*") > maxStars:
		return fmt.Errorf("%q has more than %d *", p, maxStars)
	}
	return nil
}

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
