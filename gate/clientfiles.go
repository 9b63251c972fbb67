package gate

import (
	"encoding/base64"
	"strings"

	"ahprelay/ahp"
)

// Hosts have URIs for the files of clients, with the clientId as the
// authority: vscode-agent-client://<clientId>/file/-/home/ada/notes.txt. Who
// asks a host for one has the host ask that client. They stand in many places,
// and hosts read them in many ways: as strings, as objects with a member
// "authority", in a channel's name as base64 of JSON. So what is looked at
// here is every string of a request, in whatever way somebody could read it;
// an authority that is the clientId of another subject in one of them is
// enough to refuse.

// clientScheme is part of the schemes of URIs that stand for files of clients,
// and of nothing else. Their authority has to be one of the subject's own.
const clientScheme = "agent-client"

// Bounds of how deep URIs are looked for in others. What goes deeper is
// refused.
const (
	maxEscapes = 4        // times that a text is percent-encoded
	maxPacks   = 3        // texts in base64 in texts
	freeWork   = 1 << 20  // bytes that are looked at for each request,
	workFactor = 64       // and as many times its length
	maxPacked  = 64 << 10 // bytes of base64; above it, nothing is the name of a channel any more
	minPacked  = 8        // bytes of base64: a URI with an authority has more
)

// foreignFile reports whether a request names a file of another subject's
// client, or cannot be understood.
func (i *Identity) foreignFile(env *ahp.Envelope) bool {
	l := look{subjects: i.subjects, own: i.who.Subject, work: freeWork + workFactor*len(env.Params)}
	data := string(env.Method) == "resourceWrite"
	return l.text(string(env.Channel), 0) || l.strings(env.Params, data, 0)
}

// A look is a search for URIs of others' files.
type look struct {
	subjects *Subjects
	own      string // who asks
	work     int    // bytes that may still be looked at
}

// tooMuch takes note of work to be done, and reports whether it is too much.
func (l *look) tooMuch(bytes int) bool {
	l.work -= bytes
	return l.work < 0
}

// strings reports whether a string of a raw JSON value names a file of
// another's. The content that resourceWrite brings is none to be looked at.
func (l *look) strings(raw []byte, data bool, nested int) (found bool) {
	client := hasClientScheme(raw)
	ahp.Strings(raw, func(s ahp.StringAt) bool {
		switch {
		case s.Text == nil: // hosts replace what is no text, each in its way
			found = true
		case data && s.Depth == 1 && string(s.Key) == "data":
		case strings.EqualFold(string(s.Key), "authority"):
			found = l.authority(string(s.Text), client) || l.text(string(s.Text), nested)
		default:
			found = l.text(string(s.Text), nested)
		}
		return !found
	})
	return found
}

// hasClientScheme reports whether an object in a raw JSON value has the scheme
// of a client's files as a member.
func hasClientScheme(raw []byte) (found bool) {
	ahp.Strings(raw, func(s ahp.StringAt) bool {
		found = strings.EqualFold(string(s.Key), "scheme") && strings.Contains(strings.ToLower(string(s.Text)), clientScheme)
		return !found
	})
	return found
}

// text reports whether a text names a file of another's, however often it is
// percent-encoded.
func (l *look) text(text string, nested int) bool {
	if !strings.ContainsAny(text, `/\:%`) {
		return false
	}
	for range maxEscapes {
		if l.form(text, nested) {
			return true
		}
		plain := unescapePercent(text)
		if plain == text {
			return false
		}
		text = plain
	}
	return true
}

// form looks at a text as it stands. Some parsers of URIs drop line breaks and
// tabs, and take a backslash for a slash.
func (l *look) form(text string, nested int) bool {
	if l.tooMuch(len(text)) {
		return true
	}
	if l.authorities(text, "/?#") || l.packed(text, nested) {
		return true
	}
	clean := lenient.Replace(text)
	return clean != text && (l.authorities(clean, "/?# \"'<>") || l.packed(clean, nested)) ||
		l.authorities(text, "/?# \"'<>")
}

var lenient = strings.NewReplacer("\t", "", "\n", "", "\r", "", `\`, "/")

// authorities looks at whatever follows two slashes, up to one of the ends.
func (l *look) authorities(text, ends string) bool {
	for at := 0; ; {
		next := strings.Index(text[at:], "//")
		if next < 0 {
			return false
		}
		at += next
		rest := text[at+2:]
		if end := strings.IndexAny(rest, ends); end >= 0 {
			rest = rest[:end]
		}
		if l.authority(rest, ofClient(text[:at])) {
			return true
		}
		at++ // of three slashes, the last two may be meant
	}
}

// ofClient reports whether a text ends with the scheme of a client's files,
// and its colon.
func ofClient(before string) bool {
	before, ok := strings.CutSuffix(before, ":")
	if !ok {
		return false
	}
	start := strings.LastIndexFunc(before, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
	})
	return strings.Contains(strings.ToLower(before[start+1:]), clientScheme)
}

// authority reports whether an authority is a clientId of another subject. One
// that has to be a client's is also refused if nobody has said it yet: it could
// become another's.
func (l *look) authority(text string, client bool) bool {
	own := false
	for range maxEscapes {
		for _, one := range readings(text) {
			switch l.subjects.owner(hashID(one)) {
			case "":
			case l.own:
				own = true
			default:
				return true
			}
		}
		plain := unescapePercent(text)
		if plain == text {
			return client && !own && text != ""
		}
		text = plain
	}
	return true
}

// readings are what may be meant by an authority: with or without what could
// be a user or a port.
func readings(text string) []string {
	list := []string{text}
	if at := strings.IndexByte(text, '@'); at >= 0 {
		list = append(list, text[at+1:], text[strings.LastIndexByte(text, '@')+1:])
	}
	for _, one := range list {
		if at := strings.LastIndexByte(one, ':'); at >= 0 {
			list = append(list, one[:at])
		}
	}
	return list
}

// packed looks at what is in base64 behind a colon or slash: channels of
// resource watches are named so. Base64 may have slashes of its own.
func (l *look) packed(text string, nested int) bool {
	if nested == maxPacks {
		return false
	}
	uri := text
	if end := strings.IndexAny(uri, "?#"); end >= 0 {
		uri = uri[:end]
	}
	starts := 0
	for rest, more := uri, true; more; starts++ {
		if starts < maxStarts && l.base64(rest, nested) {
			return true
		}
		piece := rest
		end := strings.IndexAny(rest, ":/")
		if more = end >= 0; more {
			piece, rest = rest[:end], rest[end+1:]
		}
		if l.base64(piece, nested) {
			return true
		}
	}
	return false
}

// maxStarts is where base64 with slashes may start: with the text, or in
// scheme://user@name:port/ behind any of them.
const maxStarts = 8

var oneAlphabet = strings.NewReplacer("-", "+", "_", "/", "=", "")

func (l *look) base64(text string, nested int) bool {
	if len(text) < minPacked || len(text) > maxPacked {
		return false
	}
	if l.tooMuch(len(text)) {
		return true
	}
	data, err := base64.RawStdEncoding.DecodeString(oneAlphabet.Replace(text))
	if err != nil {
		return false
	}
	inner := strings.TrimPrefix(strings.ToValidUTF8(string(data), "\uFFFD"), "\uFEFF") // as JavaScript does
	if l.text(inner, nested+1) {
		return true
	}
	env, err := ahp.Peek([]byte(`{"method":"","params":[` + inner + `]}`))
	return err == nil && l.strings(env.Params, false, nested+1)
}

// unescapePercent decodes each escape of a URI once, and leaves what is none.
func unescapePercent(text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			high, okHigh := hexDigit(text[i+1])
			low, okLow := hexDigit(text[i+2])
			if okHigh && okLow {
				b.WriteByte(high<<4 | low)
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

func hexDigit(c byte) (value byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
