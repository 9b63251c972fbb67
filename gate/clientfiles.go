package gate

import (
	"bytes"
	"strings"
	"unicode/utf8"

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
	maxPacked  = 64 << 10 // bytes of base64; above it, nothing is the name of a channel any more
	minPacked  = 8        // bytes of base64: a URI with an authority has more
	maxStarts  = 8        // where base64 with slashes may start: with the text, or in scheme://user@name:port/ behind any of them
)

// Steps are what a look costs: one is about a nanosecond, or less. A request has so
// many for each of its bytes that any text of people or programs is looked at to
// its end; one that is made to cost more is refused, so that it costs its
// sender and nobody else.
const (
	freeSteps    = 128 << 10 // of each request,
	stepsPerByte = 4         // and for each byte of its params

	perString    = 32  // besides a step for each byte
	perSlash     = 12  // or what else takes a text apart
	perAuthority = 64  // that begins somewhere,
	perOwner     = 600 // and could be somebody's by its length
	perPiece     = 16  // that could be base64
	perEscape    = 12
	perPacked    = 12 // for each byte of base64 that is decoded, and read as JSON
)

// foreignFile says why a request may not pass: it names a file of another
// subject's client, or cannot be understood.
func (i *Identity) foreignFile(env *ahp.Envelope) objection {
	l := newLook(i.subjects, i.who.Subject, len(env.Params))
	data := string(env.Method) == "resourceWrite"
	switch found := l.text(env.Channel, 0) || l.strings(env.Params, data, 0); {
	case l.left < 0:
		return refusedLook
	case found:
		return refusedFile
	}
	return none
}

// A look is a search for URIs of others' files.
type look struct {
	subjects *Subjects
	own      string // who asks
	left     int    // steps that may still be taken
}

// newLook begins a look at so many bytes.
func newLook(subjects *Subjects, own string, size int) look {
	return look{subjects: subjects, own: own, left: freeSteps + stepsPerByte*size}
}

// tooMuch takes steps, and reports whether they are too many.
func (l *look) tooMuch(steps int) bool {
	l.left -= steps
	return l.left < 0
}

// strings reports whether a string of a raw JSON value names a file of
// another's. The content that resourceWrite brings is none to be looked at.
func (l *look) strings(raw []byte, data bool, nested int) (found bool) {
	ahp.Strings(raw, func(s ahp.StringAt) bool {
		switch {
		case s.Text == nil: // hosts replace what is no text, each in its way
			found = true
		case l.tooMuch(perString + len(s.Text)/2):
			found = true
		case data && s.Depth == 1 && string(s.Key) == "data":
		case len(s.Text) > maxLooked:
			found = l.long(s.Text, nested)
		case len(s.Key) == len("authority") && bytes.EqualFold(s.Key, []byte("authority")):
			found = l.authority(s.Text, hasClientScheme(raw)) || l.tooMuch(len(raw)) || l.text(s.Text, nested)
		default:
			found = l.text(s.Text, nested)
		}
		return !found
	})
	return found
}

// maxLooked is how much is looked at of a string that is no URI. What stands
// further behind, in a text or in a picture, no host takes for one.
const maxLooked = 32 << 10

// long is text for a longer string. One that could be a URI as a whole is
// refused: nobody has URIs so long, but for those that are their own content.
func (l *look) long(text []byte, nested int) bool {
	var start []byte
	for _, c := range text {
		if len(start) == maxLooked {
			break
		}
		if !isDropped(c) && (c > ' ' || len(start) > 0) {
			start = append(start, c)
		}
	}
	scheme, _, ok := bytes.Cut(start, []byte(":"))
	uri := ok && !bytes.ContainsFunc(scheme, func(r rune) bool { return r >= utf8.RuneSelf || !ofScheme(byte(r)) && r != '%' })
	if uri && !bytes.EqualFold(scheme, []byte("data")) && !bytes.ContainsAny(start, " \"<>") {
		l.left = -1
		return true
	}
	return l.text(text[:maxLooked], nested)
}

// hasClientScheme reports whether an object in a raw JSON value has the scheme
// of a client's files as a member.
func hasClientScheme(raw []byte) (found bool) {
	ahp.Strings(raw, func(s ahp.StringAt) bool {
		found = bytes.EqualFold(s.Key, []byte("scheme")) && strings.Contains(strings.ToLower(string(s.Text)), clientScheme)
		return !found
	})
	return found
}

// text reports whether a text names a file of another's, however often it is
// percent-encoded.
func (l *look) text(text []byte, nested int) bool {
	for range maxEscapes {
		if !hasAny(text, `/\:%`) {
			return false
		}
		if l.authorities(text) || l.packed(text, nested) {
			return true
		}
		plain, escaped := l.unescape(text)
		if !escaped {
			return l.left < 0
		}
		text = plain
	}
	return true
}

// hasAny reports whether a text has one of some characters.
func hasAny(text []byte, of string) bool {
	for i := range len(of) {
		if bytes.IndexByte(text, of[i]) >= 0 {
			return true
		}
	}
	return false
}

// isSlash reports whether parsers may take a byte for a slash.
func isSlash(c byte) bool { return c == '/' || c == '\\' }

// A finder finds the next of some bytes in a text, and looks at each byte of it
// once for each of them.
type finder struct {
	text []byte
	want []byte
	next [3]int // of each in want, if it is at or behind what was asked for last
}

// after returns where the next one stands, at or behind a place; the length of
// the text for none.
func (f *finder) after(at int) int {
	nearest := len(f.text)
	for i, c := range f.want {
		if f.next[i] < at || at == 0 {
			f.next[i] = len(f.text)
			if found := bytes.IndexByte(f.text[at:], c); found >= 0 {
				f.next[i] = at + found
			}
		}
		nearest = min(nearest, f.next[i])
	}
	return nearest
}

// isDropped reports whether some parsers of URIs drop a byte.
func isDropped(c byte) bool { return c == '\t' || c == '\n' || c == '\r' }

// authorities looks at whatever follows two slashes. Of three slashes, the
// last two may be meant.
func (l *look) authorities(text []byte) bool {
	if l.tooMuch(len(text) / 4) {
		return true
	}
	slashes := finder{text: text, want: []byte(`/\`)}
	for i := slashes.after(0); i < len(text); i = slashes.after(i + 1) {
		if l.tooMuch(perSlash) {
			return true
		}
		next := i + 1
		for next < len(text) && isDropped(text[next]) {
			next++
		}
		if next == len(text) || !isSlash(text[next]) {
			continue
		}
		plain := next == i+1 && text[i] == '/' && text[next] == '/'
		if l.authorityAt(text[:i], text[next+1:], plain) {
			return true
		}
	}
	return false
}

// authorityAt looks at an authority that may end in several ways: with a
// slash, a query or a fragment, if it is plain that it begins; with what cannot
// stand in a URI; or with a backslash, once what some parsers drop is gone.
func (l *look) authorityAt(before, rest []byte, plain bool) bool {
	end, lenient, drops := -1, -1, false
scan:
	for i, c := range rest {
		switch c {
		case '/', '?', '#':
			rest = rest[:i]
			break scan
		case ' ', '"', '\'', '<', '>':
			end = first(end, i)
		case '\\':
			if lenient = first(lenient, i); !plain {
				rest = rest[:i]
				break scan
			}
		case '\t', '\n', '\r':
			drops = drops || end < 0 && lenient < 0
		}
	}
	if len(rest) == 0 {
		return false
	}
	if l.tooMuch(perAuthority + len(rest)) {
		return true
	}
	client := ofClient(before)
	if l.authority(rest, client) || end >= 0 && l.authority(rest[:end], client) {
		return true
	}
	if end >= 0 {
		rest = rest[:end]
	}
	if lenient >= 0 && lenient < len(rest) {
		rest = rest[:lenient]
	} else if !drops {
		return false
	}
	return l.authority(dropped(rest), client)
}

// first is at, if there is none yet.
func first(found, at int) int {
	if found < 0 {
		return at
	}
	return found
}

// dropped returns a text without what some parsers drop.
func dropped(text []byte) []byte {
	var out []byte
	for _, c := range text {
		if !isDropped(c) {
			out = append(out, c)
		}
	}
	return out
}

// maxScheme is how much of a scheme is looked at, from its end.
const maxScheme = 256

// ofClient reports whether a text ends with the scheme of a client's files,
// and its colon.
func ofClient(before []byte) bool {
	i := len(before) - 1
	for i >= 0 && isDropped(before[i]) {
		i--
	}
	if i < 0 || before[i] != ':' {
		return false
	}
	var scheme [maxScheme]byte
	start := len(scheme)
	for i--; i >= 0 && start > 0; i-- {
		c := before[i]
		if isDropped(c) {
			continue
		}
		if !ofScheme(c) {
			break
		}
		start--
		scheme[start] = c | 0x20 // of a letter, the small one
	}
	return bytes.Contains(scheme[start:], []byte(clientScheme))
}

// ofScheme reports whether a byte may stand in a scheme.
func ofScheme(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'
}

// authority reports whether an authority is a clientId of another subject. One
// that has to be a client's is also refused if nobody has said it yet: it could
// become another's.
func (l *look) authority(text []byte, client bool) bool {
	if !client && !hasAny(text, "%@:") {
		owner := l.owner(text)
		return owner != "" && owner != l.own || l.left < 0
	}
	own := false
	for range maxEscapes {
		list, n := readings(text)
		for _, one := range list[:n] {
			switch l.owner(one) {
			case "":
			case l.own:
				own = true
			default:
				return true
			}
		}
		plain, escaped := l.unescape(text)
		if !escaped {
			return client && !own && len(text) > 0 || l.left < 0
		}
		text = plain
	}
	return true
}

// owner returns whose a clientId is, "" if it is nobody's. Most lengths are no
// clientId's.
func (l *look) owner(id []byte) string {
	switch {
	case len(id) > 3*maxClientIDLen: // in lower case it may be a third as long
		return ""
	case bytes.ContainsFunc(id, func(r rune) bool { return r >= utf8.RuneSelf }):
		id = bytes.ToLower(id)
		if !l.subjects.hasLength(len(id)) {
			return ""
		}
	case !l.subjects.hasLength(len(id)):
		return ""
	default:
		id = bytes.ToLower(id)
	}
	if l.tooMuch(perOwner) {
		return ""
	}
	return l.subjects.owner(hashLower(id))
}

// readings are what may be meant by an authority: with or without what could
// be a user or a port.
func readings(text []byte) (list [6][]byte, n int) {
	add := func(one []byte) {
		list[n] = one
		n++
	}
	add(text)
	if at := bytes.IndexByte(text, '@'); at >= 0 {
		add(text[at+1:])
		if last := bytes.LastIndexByte(text, '@'); last > at {
			add(text[last+1:])
		}
	}
	for _, one := range list[:n] {
		if at := bytes.LastIndexByte(one, ':'); at >= 0 {
			add(one[:at])
		}
	}
	return list, n
}

// packed looks at what is in base64 behind a colon or slash: channels of
// resource watches are named so. Base64 may have slashes of its own.
func (l *look) packed(text []byte, nested int) bool {
	if nested == maxPacks {
		return false
	}
	for _, end := range []byte("?#") {
		if at := bytes.IndexByte(text, end); at >= 0 {
			text = text[:at]
		}
	}
	if l.tooMuch(len(text) / 4) {
		return true
	}
	ends := finder{text: text, want: []byte(`:/\`)}
	for at, starts := 0, 0; ; starts++ {
		end := ends.after(at)
		if l.tooMuch(perSlash) || starts < maxStarts && end < len(text) && l.base64(text[at:], nested) || l.base64(text[at:end], nested) {
			return true
		}
		if end == len(text) {
			return false
		}
		at = end + 1
	}
}

// base64 looks at what a text is in base64, of either alphabet.
func (l *look) base64(text []byte, nested int) bool {
	if len(text) < minPacked || len(text) > maxPacked {
		return false
	}
	if l.tooMuch(perPiece) {
		return true
	}
	if !begins(text, minPacked) || !begins(text, maxBeginning) {
		return false
	}
	if l.tooMuch(perPacked * len(text)) {
		return true
	}
	data, whole := decodeBase64(nil, text)
	if !whole {
		return false
	}
	inner := bytes.TrimPrefix(bytes.ToValidUTF8(data, []byte("\uFFFD")), []byte("\uFEFF")) // as JavaScript does
	if l.text(inner, nested+1) {
		return true
	}
	message := append(append([]byte(`{"method":"","params":[`), inner...), "]}"...)
	env, err := ahp.Peek(message)
	return err == nil && l.strings(env.Params, false, nested+1)
}

// maxBeginning is how much base64 is decoded to see whether it is worth more.
const maxBeginning = 64

// begins reports whether what so many bytes of base64 decode to may be the
// beginning of a URI, or of JSON that has strings.
func begins(text []byte, size int) bool {
	var buffer [maxBeginning]byte
	data, ok := decodeBase64(buffer[:0], text[:min(size, len(text))])
	if !ok {
		return false
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	for len(data) > 0 && data[0] <= ' ' {
		data = data[1:]
	}
	for i, c := range data {
		switch {
		case ofScheme(c) || isDropped(c):
		case i == 0:
			return strings.IndexByte(`{["/\%`, c) >= 0
		default:
			return c == ':' || c == '%'
		}
	}
	return size < len(text)
}

// base64Values are the values of the characters of both alphabets, and of a
// backslash, which may stand for a slash; 64 is for what is left out, and 65 for
// what is none of base64.
var base64Values = func() (values [256]byte) {
	for i := range values {
		values[i] = 65
	}
	for i, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") {
		values[c] = byte(i)
	}
	values['+'], values['-'] = 62, 62
	values['/'], values['_'], values['\\'] = 63, 63, 63
	values['='], values['\t'], values['\n'], values['\r'] = 64, 64, 64, 64
	return values
}()

// decodeBase64 appends what a text is in base64; ok is false if it has other
// characters.
func decodeBase64(data, text []byte) (_ []byte, ok bool) {
	var bits uint32
	have := 0
	for _, c := range text {
		value := base64Values[c]
		if value == 65 {
			return nil, false
		}
		if value == 64 {
			continue
		}
		bits = bits<<6 | uint32(value)
		if have += 6; have >= 8 {
			have -= 8
			data = append(data, byte(bits>>have))
		}
	}
	return data, true
}

// unescape decodes each escape of a text once, and reports whether there are
// any.
func (l *look) unescape(text []byte) (plain []byte, escaped bool) {
	copied := 0
	for at := 0; ; at++ {
		next := bytes.IndexByte(text[at:], '%')
		if next < 0 {
			break
		}
		if l.tooMuch(perEscape) {
			return nil, false
		}
		at += next
		if c, ok := escapeAt(text, at); ok {
			if plain == nil {
				plain = make([]byte, 0, len(text)-2)
			}
			plain = append(append(plain, text[copied:at]...), c)
			at += 2
			copied, escaped = at+1, true
		}
	}
	if !escaped {
		return text, false
	}
	return append(plain, text[copied:]...), true
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
