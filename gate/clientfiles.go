package gate

import (
	"bytes"
	"encoding/binary"
	"math/bits"
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

// Steps are what a look costs: one is about a nanosecond, or less, but for what it
// takes to read a text's JSON. A request has so many for each of its bytes that any
// text of people or programs is looked at to its end, in one string or in many; one
// that is made to cost more is refused, so that it costs its sender and nobody else.
const (
	freeSteps    = 128 << 10 // of each request,
	stepsPerByte = 3         // and for each byte of its params

	perString    = 16  // besides half a step for each byte
	perMarked    = 20  // that could name a file, besides half a step for each byte
	perMark      = 5   // slash or colon
	perAuthority = 20  // that begins somewhere,
	perOwner     = 600 // and could be somebody's by its length
	perPiece     = 10  // that could be base64
	perEscape    = 8
	perRound     = 30  // of decoding escapes, besides
	perUnpacked  = 250 // that begins like a URI or JSON, and is decoded and read
	perPacked    = 12  // for each byte of base64 that is decoded, and read as JSON
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

	escapedAuthority bool // authorities has found one with an escape
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
			found = l.authority(s.Text, hasClientScheme(raw), authorityClassOf(s.Text)) || l.tooMuch(len(raw)) || l.text(s.Text, nested)
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
		has := marksOf(text)
		if has == 0 {
			return false
		}
		if l.tooMuch(perMarked + len(text)/2) {
			return true
		}
		l.escapedAuthority = false
		if l.parts(text, nested) {
			return true
		}
		if has&markEscape == 0 || !l.escapedAuthority && l.escapesNothing(text) {
			return l.left < 0
		}
		plain, escaped := l.unescape(text)
		if !escaped {
			return l.left < 0
		}
		text = plain
	}
	return true
}

// A marks says which bytes a text has that could make it name a file.
type marks uint8

const (
	markSlash marks = 1 << iota // a slash or backslash
	markColon
	markEscape // a percent sign
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// marksOf looks at each byte of a text once, eight at a time.
func marksOf(text []byte) (has marks) {
	var slash, colon, escape uint64
	i := 0
	for ; i+8 <= len(text); i += 8 {
		word := binary.LittleEndian.Uint64(text[i:])
		s, b, c, e := word^'/'*lowBits, word^'\\'*lowBits, word^':'*lowBits, word^'%'*lowBits
		slash |= (s-lowBits)&^s | (b-lowBits)&^b
		colon |= (c - lowBits) &^ c
		escape |= (e - lowBits) &^ e
	}
	if slash&highBits != 0 {
		has |= markSlash
	}
	if colon&highBits != 0 {
		has |= markColon
	}
	if escape&highBits != 0 {
		has |= markEscape
	}
	for ; i < len(text); i++ {
		has |= markOf[text[i]]
	}
	return has
}

var markOf = [256]marks{'/': markSlash, '\\': markSlash, ':': markColon, '%': markEscape}

// isSlash reports whether parsers may take a byte for a slash.
func isSlash(c byte) bool { return c == '/' || c == '\\' }

// nextMark returns where the next slash, backslash or colon of a text stands, at
// or behind a place; the length of the text for none.
func nextMark(text []byte, at int) int {
	for ; at+8 <= len(text); at += 8 {
		word := binary.LittleEndian.Uint64(text[at:])
		s, b, c := word^'/'*lowBits, word^'\\'*lowBits, word^':'*lowBits
		if found := ((s-lowBits)&^s | (b-lowBits)&^b | (c-lowBits)&^c) & highBits; found != 0 {
			return at + bits.TrailingZeros64(found)/8 // the lowest mark is exact
		}
	}
	for ; at < len(text); at++ {
		if markOf[text[at]]&(markSlash|markColon) != 0 {
			return at
		}
	}
	return len(text)
}

// isDropped reports whether some parsers of URIs drop a byte.
func isDropped(c byte) bool { return c == '\t' || c == '\n' || c == '\r' }

// parts looks at what slashes and colons part a text into: at whatever follows
// two slashes, and at what could be base64, which stands before a query or
// fragment.
func (l *look) parts(text []byte, nested int) bool {
	path := text
	for _, end := range []byte("?#") {
		if at := bytes.IndexByte(path, end); at >= 0 {
			path = path[:at]
		}
	}
	if nested == maxPacks {
		path = nil
	}
	for at, starts := 0, 0; ; starts++ {
		end := nextMark(text, at)
		if l.tooMuch(perMark) {
			return true
		}
		if at < len(path) && l.packed(path, at, min(end, len(path)), starts, nested) {
			return true
		}
		if end == len(text) {
			return false
		}
		if isSlash(text[end]) && l.authorityBehind(text, end) {
			return true
		}
		at = end + 1
	}
}

// authorityBehind looks at what follows two slashes, the first of which stands at
// a place. Of three slashes, the last two may be meant.
func (l *look) authorityBehind(text []byte, at int) bool {
	next := at + 1
	for next < len(text) && isDropped(text[next]) {
		next++
	}
	if next == len(text) || !isSlash(text[next]) {
		return false
	}
	plain := next == at+1 && text[at] == '/' && text[next] == '/'
	return l.authorityAt(text[:at], text[next+1:], plain)
}

// authorityAt looks at an authority that may end in several ways: with a
// slash, a query or a fragment, if it is plain that it begins; with what cannot
// stand in a URI; or with a backslash, once what some parsers drop is gone.
func (l *look) authorityAt(before, rest []byte, plain bool) bool {
	end, lenient, drops := -1, -1, false
	var class authorityClass
scan:
	for i, c := range rest {
		one := classOf[c]
		if one == 0 {
			continue
		}
		class |= one
		switch {
		case one&ends != 0:
			rest = rest[:i]
			break scan
		case one&mayEnd != 0:
			end = first(end, i)
		case c == '\\':
			if lenient = first(lenient, i); !plain {
				rest = rest[:i]
				break scan
			}
		case one&isLost != 0:
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
	l.escapedAuthority = l.escapedAuthority || class&escapes != 0
	if l.authority(rest, client, class) || end >= 0 && l.authority(rest[:end], client, class) {
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
	return l.authority(dropped(rest), client, class)
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

// An authorityClass says what an authority has.
type authorityClass uint8

const (
	severalReadings authorityClass = 1 << iota // an escape, or what could end a user or begin a port
	escapes
	notASCII
	ends   // a slash, a query or a fragment begins
	mayEnd // it cannot stand in a URI
	isLost // some parsers drop it
	isBack // a backslash
)

var classOf = func() (class [256]authorityClass) {
	for c := range class {
		if c >= utf8.RuneSelf {
			class[c] = notASCII
		}
	}
	for of, chars := range map[authorityClass]string{
		severalReadings: "@:", severalReadings | escapes: "%", ends: "/?#", mayEnd: " \"'<>", isLost: "\t\n\r", isBack: "\\",
	} {
		for _, c := range []byte(chars) {
			class[c] = of
		}
	}
	return class
}()

// authorityClassOf returns what a text has.
func authorityClassOf(text []byte) (class authorityClass) {
	for _, c := range text {
		class |= classOf[c]
	}
	return class
}

// authority reports whether an authority is a clientId of another subject. One
// that has to be a client's is also refused if nobody has said it yet: it could
// become another's.
// It has at most what class says.
func (l *look) authority(text []byte, client bool, class authorityClass) bool {
	if !client && class&severalReadings == 0 {
		if class&notASCII == 0 && !l.subjects.hasLength(len(text)) {
			return l.left < 0
		}
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
	case !isASCII(id):
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

func isASCII(text []byte) bool {
	for _, c := range text {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
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

// packed looks at what is in base64 between two marks, or from the first of them
// to the end, since base64 may have slashes of its own: channels of resource
// watches are named so. starts is how many marks were before.
func (l *look) packed(text []byte, at, end, starts, nested int) bool {
	rest := text[at:]
	if len(rest) < minPacked || !mayBegin(rest[0], rest[1]) || !begins(rest, minPacked) {
		return false
	}
	return starts < maxStarts && end < len(text) && l.base64(rest, nested) || l.base64(text[at:end], nested)
}

// base64 looks at what a text is in base64, of either alphabet, whose first
// characters begin something.
func (l *look) base64(text []byte, nested int) bool {
	if len(text) < minPacked || len(text) > maxPacked {
		return false
	}
	if l.tooMuch(perPiece) {
		return true
	}
	if !begins(text, maxBeginning) {
		return false
	}
	if l.tooMuch(perUnpacked + perPacked*len(text)) {
		return true
	}
	data, whole := decodeBase64(make([]byte, 0, len(text)), text)
	if !whole {
		return false
	}
	inner := bytes.TrimPrefix(bytes.ToValidUTF8(data, []byte("\uFFFD")), []byte("\uFEFF")) // as JavaScript does
	defer func(outside bool) { l.escapedAuthority = outside }(l.escapedAuthority)
	if l.text(inner, nested+1) {
		return true
	}
	message := make([]byte, 0, len(inner)+32)
	message = append(append(append(message, `{"method":"","params":[`...), inner...), "]}"...)
	env, err := ahp.Peek(message)
	return err == nil && l.strings(env.Params, false, nested+1)
}

// mayBegin reports whether two characters of base64 may be the first of what
// begins accepts. Most of those of a text may not.
func mayBegin(first, second byte) bool {
	high, low := base64Values[first], base64Values[second]
	switch {
	case high == 65 || low == 65:
		return false
	case high == 64 || low == 64: // what they decode to is further behind
		return true
	}
	return beginning[high<<2|low>>4]
}

// beginning is true for the bytes that begins accepts first: also 0xEF, of a byte
// order mark.
var beginning = func() (may [256]bool) {
	for c := range may {
		may[c] = c <= ' ' || ofScheme(byte(c)) || strings.IndexByte("{[\"/\\%\xEF", byte(c)) >= 0
	}
	return may
}()

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

// escapesNothing reports whether all that is escaped in a text is such as makes no
// difference outside of an authority: no part of a scheme, of base64 or of an
// escape, and nothing that an authority or a path begins or ends with.
func (l *look) escapesNothing(text []byte) bool {
	for at := 0; ; at++ {
		next := bytes.IndexByte(text[at:], '%')
		if next < 0 {
			return true
		}
		at += next
		if c, ok := escapeAt(text, at); l.tooMuch(perEscape) || ok && (markOf[c] != 0 || c == '?' || c == '#' || c == '@' || base64Values[c] != 65 || ofScheme(c)) {
			return false
		}
	}
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
				if l.tooMuch(perRound) {
					return nil, false
				}
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
