package gate

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Hosts parse URIs in many ways: some decode escapes twice or ignore invalid ones, drop
// tabs and line breaks, or treat a backslash as a slash. So a URI is accepted only if all
// parsers read it in the same way. It is compared after its escapes are decoded. The
// rules are those of RFC 3986, without everything that known parsers (WHATWG's URL, VS
// Code's, Go's) read differently.

// Schemes with file system paths.
const (
	fileScheme   = "file"
	remoteScheme = "vscode-remote"
)

// isFile reports whether a URI may name a file, even if its scheme is misspelled.
func isFile(uri string) bool { return contentRules[bareScheme(uri)] == byFile }

// bareScheme returns a URI's scheme as a lenient parser reads it: in lower case, without
// blanks and control characters.
func bareScheme(uri string) string {
	scheme, _, _ := strings.Cut(uri, ":")
	return strings.ToLower(strings.Map(func(r rune) rune {
		if r <= ' ' {
			return -1
		}
		return r
	}, scheme))
}

// Reasons why a URI is not canonical.
var (
	errScheme    = errors.New("it does not begin with a scheme in lower case")
	errCharacter = errors.New("it has a character that must be percent-encoded")
	errEscape    = errors.New("it has an escape that is invalid, not UTF-8, or unnecessary")
	errHidden    = errors.New("its path has an encoded slash, backslash or control character")
	errDots      = errors.New("its path has a part with only dots or spaces")
	errEmpty     = errors.New("its path has an empty part")
	errFile      = errors.New("a file has neither query nor fragment, and is written file:///path or file://server/path")
)

// canonical returns a URI with its escapes decoded, or the reason why parsers may read it
// differently. Characters that would be ambiguous after decoding remain encoded, and so
// does the star, because patterns use it.
func canonical(uri string) (string, error) {
	scheme, rest, ok := strings.Cut(uri, ":")
	if !ok || !isScheme(scheme) {
		return "", errScheme
	}
	if err := checkText(rest); err != nil {
		return "", err
	}
	hier, tail := rest, ""
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		hier, tail = rest[:i], rest[i:]
	}
	authority, path, hasAuthority := cutAuthority(hier)
	a, err := canonicalPart(authority)
	if err != nil {
		return "", err
	}
	p, err := canonicalPath(path)
	if err != nil {
		return "", err
	}
	if err := checkTail(tail); err != nil {
		return "", err
	}
	before := scheme + ":"
	if hasAuthority {
		before += "//" + a
	}
	if isFile(scheme + ":") {
		if p, err = filePath(scheme, a, p, hasAuthority, tail); err != nil {
			return "", err
		}
	}
	return before + p + tail, nil
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (i == 0 || (c < '0' || c > '9') && c != '+' && c != '-' && c != '.') {
			return false
		}
	}
	return s != ""
}

// cutAuthority splits the part of a URI after the scheme into authority and path.
func cutAuthority(hier string) (authority, path string, ok bool) {
	after, ok := strings.CutPrefix(hier, "//")
	if !ok {
		return "", hier, false
	}
	if i := strings.IndexByte(after, '/'); i >= 0 {
		return after[:i], after[i:], true
	}
	return after, "", true
}

// checkText returns an error for invalid characters and escapes. Letters in all languages
// need no escape, because all parsers read them in the same way.
func checkText(text string) error {
	if !utf8.ValidString(text) {
		return errCharacter
	}
	for i, r := range text {
		switch {
		case r == '%':
			if c, ok := escapeAt(text, i); !ok || isUnreserved(c) {
				return errEscape
			}
		case !mayStand(r):
			return errCharacter
		}
	}
	return nil
}

// mayStand reports whether a character needs no escape.
func mayStand(r rune) bool {
	return r > ' ' && !strings.ContainsRune("\"<>\\^`{|}\x7f", r) && !unicode.IsControl(r) && !unicode.IsSpace(r)
}

// escapeAt decodes the percent-escape that begins at index i.
func escapeAt[T string | []byte](text T, i int) (byte, bool) {
	if i+2 >= len(text) {
		return 0, false
	}
	high, okHigh := hexDigit(text[i+1])
	low, okLow := hexDigit(text[i+2])
	return high<<4 | low, okHigh && okLow
}

// isUnreserved reports whether a character has the same meaning with and without an
// escape (RFC 3986, section 2.3). No encoder escapes such a character.
func isUnreserved(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func canonicalPath(path string) (string, error) {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if part == "" && i > 0 && i < len(parts)-1 {
			return "", errEmpty
		}
		var err error
		if parts[i], err = canonicalPart(part); err != nil {
			return "", err
		}
	}
	return strings.Join(parts, "/"), nil
}

// canonicalPart decodes a path's part, or an authority. It returns an error if repeated
// decoding by a host could split the part or make it lead upward.
func canonicalPart(part string) (string, error) {
	text := part
	for i := range maxEscapes {
		switch {
		case !utf8.ValidString(text):
			return "", errEscape
		case i > 0 && strings.ContainsFunc(text, func(r rune) bool { return r == '/' || r == '\\' || unicode.IsControl(r) }):
			return "", errHidden
		case leadsUp(text):
			return "", errDots
		}
		plain := unescapePercent(text)
		if plain == text {
			return encode(unescapePercent(part)), nil
		}
		text = plain
	}
	return "", errHidden
}

// leadsUp reports whether a path's part is "." or "..", or could be mistaken for these.
// Windows ignores dots and spaces at the end of a name, and some parsers decode a path
// before they split it.
func leadsUp(part string) bool {
	for piece := range strings.FieldsFuncSeq(part, func(c rune) bool { return strings.ContainsRune(":;?#", c) }) {
		if strings.Trim(piece, ". ") == "" {
			return true
		}
	}
	return false
}

// checkTail checks a query and fragment as strictly as a path, because some parsers treat
// them as part of the path.
func checkTail(tail string) error {
	for range maxEscapes {
		if strings.ContainsAny(tail, "\x00\t\r\n") {
			return errHidden
		}
		for part := range strings.FieldsFuncSeq(tail, func(c rune) bool { return strings.ContainsRune(`/\?#:`, c) }) {
			if leadsUp(part) {
				return errDots
			}
		}
		plain := unescapePercent(tail)
		if plain == tail {
			return nil
		}
		tail = plain
	}
	return errHidden
}

// encode encodes the characters of a decoded text that are invalid or special in a
// URI.
func encode(text string) string {
	const digits = "0123456789ABCDEF"
	if utf8.ValidString(text) && !strings.ContainsFunc(text, mustEncode) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && size == 1 || mustEncode(r) {
			for _, c := range []byte(text[:size]) {
				b.Write([]byte{'%', digits[c>>4], digits[c&15]})
			}
		} else {
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

func mustEncode(r rune) bool { return !mayStand(r) || strings.ContainsRune("/%?#*", r) }

func filePath(scheme, authority, path string, hasAuthority bool, tail string) (string, error) {
	if !hasAuthority || !strings.HasPrefix(path, "/") || tail != "" {
		return "", errFile
	}
	if scheme == fileScheme && (authority == "localhost" || strings.ContainsFunc(authority, notOfServer)) {
		return "", errFile
	}
	if isDrive(path) {
		if path[2] != ':' {
			return "", errCharacter
		}
		return "/" + strings.ToLower(path[1:2]) + path[2:], nil
	}
	return path, nil
}

// notOfServer reports whether a character is invalid in a server's name.
func notOfServer(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-._", r)
}

// isDrive reports whether a file's path begins with a Windows drive: /c: or the old form
// /c|, whose bar is encoded here.
func isDrive(path string) bool {
	if len(path) < 3 || (path[1]|0x20 < 'a' || path[1]|0x20 > 'z') {
		return false
	}
	drive, _, _ := strings.Cut(path[1:], "/")
	return drive[1:] == ":" || drive[1:] == "%7C"
}

// canonicalPattern returns a pattern's canonical form. Only its stars are special.
func canonicalPattern(pattern string) string {
	if path, ok := strings.CutPrefix(pattern, "file:/"); ok && !strings.HasPrefix(path, "/") {
		pattern = "file:///" + path
	}
	pieces := strings.Split(pattern, "*")
	for i, piece := range pieces {
		hier, tail := piece, ""
		if at := strings.IndexAny(piece, "?#"); at >= 0 {
			hier, tail = piece[:at], piece[at:]
		}
		parts := strings.Split(hier, "/")
		for j, part := range parts {
			parts[j] = encode(unescapePercent(part))
		}
		pieces[i] = strings.Join(parts, "/") + tail
	}
	text := strings.Join(pieces, "*")
	const local = "file://"
	if path, ok := strings.CutPrefix(text, local); ok && isDrive(path) {
		text = local + "/" + strings.ToLower(path[1:2]) + path[2:]
	}
	return text
}

func canonicalPatterns(list []string) []string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = canonicalPattern(p)
	}
	return out
}
