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
	freeSteps   = 128 << 10 // of each request,
	stepsPerTwo = 5         // and for each two bytes of its params

	perString    = 18  // besides half a step for each byte
	perMarked    = 23  // that could name a file, besides half a step for each byte
	perMark      = 5   // slash or colon
	perAuthority = 20  // that begins somewhere,
	perOwner     = 600 // and could be somebody's by its length
	perPiece     = 12  // that could be base64
	perEscape    = 8
	perRound     = 30  // of decoding escapes, besides
	perUnpacked  = 280 // that begins like a URI or JSON, and is decoded and read
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
	return look{subjects: subjects, own: own, left: freeSteps + size*stepsPerTwo/2}
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
		case s.Bare:
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
		start := firstMark(text)
		if start == len(text) {
			return false
		}
		if l.tooMuch(perMarked + len(text)/2) {
			return true
		}
		l.escapedAuthority = false
		if l.parts(text, start, nested) {
			return true
		}
		if bytes.IndexByte(text[start:], '%') < 0 || !l.escapedAuthority && l.escapesNothing(text) {
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

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// marksIn marks the slashes, backslashes and colons of a word. The lowest mark is
// exact; there may be wrong ones above it.
func marksIn(word uint64) uint64 {
	s, b, c := word^'/'*lowBits, word^'\\'*lowBits, word^':'*lowBits
	return ((s-lowBits)&^s | (b-lowBits)&^b | (c-lowBits)&^c) & highBits
}

// firstMark returns where the first of a text's bytes stands that could make it name a
// file: a slash, backslash, colon or percent sign; the length of the text for none.
func firstMark(text []byte) int {
	at := 0
	for ; at+8 <= len(text); at += 8 {
		word := binary.LittleEndian.Uint64(text[at:])
		e := word ^ '%'*lowBits
		if found := marksIn(word) | (e-lowBits)&^e&highBits; found != 0 {
			return at + bits.TrailingZeros64(found)/8
		}
	}
	for ; at < len(text); at++ {
		if isMark[text[at]] || text[at] == '%' {
			return at
		}
	}
	return at
}

// isMark is true for slashes, backslashes and colons.
var isMark = [256]bool{'/': true, '\\': true, ':': true}

// isSlash reports whether parsers may take a byte for a slash.
func isSlash(c byte) bool { return c == '/' || c == '\\' }

// isDropped reports whether some parsers of URIs drop a byte.
func isDropped(c byte) bool { return c == '\t' || c == '\n' || c == '\r' }

// parts looks at what slashes and colons part a text into: at whatever follows
// two slashes, and at what could be base64, which stands before a query or
// fragment. No mark stands before start.
func (l *look) parts(text []byte, start, nested int) bool {
	p := part{text: text, path: text, nested: nested}
	if nested == maxPacks {
		p.path = nil
	}
	for base := start; base < len(text); base += 8 {
		var found uint64
		if base+8 <= len(text) {
			found = marksIn(binary.LittleEndian.Uint64(text[base:]))
		} else {
			for i, c := range text[base:] {
				if isMark[c] {
					found |= 0x80 << (8 * i)
				}
			}
		}
		for ; found != 0; found &= found - 1 {
			end := base + bits.TrailingZeros64(found)/8
			if !isMark[text[end]] {
				continue
			}
			if l.tooMuch(perMark) || p.mayBePacked() && l.packed(&p, end) {
				return true
			}
			p.at = end + 1
			p.starts++
			if p.at < len(text) && mayFollow[text[p.at]] && text[end] != ':' && l.authorityBehind(&p, end) {
				return true
			}
		}
	}
	return l.tooMuch(perMark) || p.mayBePacked() && l.packed(&p, len(text))
}

// A part is a text that is being parted.
type part struct {
	text, path []byte // path is what stands before a query or fragment, once it is cut
	cut        bool
	nested     int
	at         int // where the part begins that is looked at
	starts     int // marks before it

	lookedForUser, user bool // see hasUser
}

// hasUser reports whether an authority of the text may have a user before the rest. Most
// texts are nobody's address.
func (p *part) hasUser() bool {
	if !p.lookedForUser {
		p.lookedForUser, p.user = true, bytes.IndexByte(p.text, '@') >= 0
	}
	return p.user
}

// mayBePacked reports whether the part that is looked at, or all from there on, could be
// base64 of something to look at. Few are.
func (p *part) mayBePacked() bool {
	return p.at+minPacked <= len(p.path) && mayBegin([4]byte(p.path[p.at:]))
}

// mayFollow is true for what may stand behind a slash that begins an authority: another,
// or what some parsers drop.
var mayFollow = [256]bool{'/': true, '\\': true, '\t': true, '\n': true, '\r': true}

// authorityBehind looks at what follows two slashes, the first of which stands at
// a place. Of three slashes, the last two may be meant.
func (l *look) authorityBehind(p *part, at int) bool {
	text, next := p.text, at+1
	for next < len(text) && isDropped(text[next]) {
		next++
	}
	if next == len(text) || !isSlash(text[next]) {
		return false
	}
	plain := next == at+1 && text[at] == '/' && text[next] == '/'
	before, rest := text[:at], text[next+1:]
	if len(rest) == 0 || !l.subjects.mayBegin(rest[0]) && !p.hasUser() && !ofClient(before) {
		return false
	}
	return l.authorityAt(before, rest, plain)
}

// authorityAt looks at an authority that may end in several ways: with a
// slash, a query or a fragment, if it is plain that it begins; with what cannot
// stand in a URI; or with a backslash, once what some parsers drop is gone.
func (l *look) authorityAt(before, rest []byte, plain bool) bool {
	end, lenient, drops := -1, -1, false
	port, endPort := -1, -1 // the last colon, and that before end
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
		case c == ':':
			if port = i; end < 0 {
				endPort = i
			}
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
	if !client && class&^(severalReadings|ends|mayEnd) == 0 { // as most are
		return l.foreign(rest, class) || l.foreignTo(rest, port, class) || l.foreignTo(rest, end, class) || l.foreignTo(rest, endPort, class) || l.left < 0
	}
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

// foreignTo is foreign for a text up to a place; -1: there is none.
func (l *look) foreignTo(text []byte, at int, class authorityClass) bool {
	return at >= 0 && l.foreign(text[:at], class)
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
	start, long := i, 0
	for start > 0 && long < maxScheme {
		c := before[start-1]
		if !ofScheme(c) && !isDropped(c) {
			break
		}
		start--
		if !isDropped(c) {
			long++
		}
	}
	return long >= len(clientScheme) && isClientScheme(before[start:i])
}

// isClientScheme reports whether a scheme of at most maxScheme bytes, and what some
// parsers drop, is that of a client's files.
func isClientScheme(scheme []byte) bool {
	var buffer [maxScheme]byte
	small := buffer[:0]
	for _, c := range scheme {
		if !isDropped(c) {
			small = append(small, c|0x20) // of a letter, the small one
		}
	}
	return bytes.Contains(small, []byte(clientScheme))
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
	isAt   // what ends a user
)

var classOf = func() (class [256]authorityClass) {
	for c := range class {
		if c >= utf8.RuneSelf {
			class[c] = notASCII
		}
	}
	for of, chars := range map[authorityClass]string{
		severalReadings: ":", severalReadings | isAt: "@", severalReadings | escapes: "%", ends: "/?#", mayEnd: " \"'<>", isLost: "\t\n\r", isBack: "\\",
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
	if len(text) == 0 {
		return l.left < 0
	}
	if !client && class&escapes == 0 {
		return l.foreignAmong(text, class) || l.left < 0
	}
	own := false
	for range maxEscapes {
		list, n := readings(text)
		for _, one := range list[:n] {
			switch l.owner(one, notASCII) {
			case "":
			case l.own:
				own = true
			default:
				return true
			}
		}
		plain, escaped := l.unescape(text)
		if !escaped {
			return client && !own || l.left < 0
		}
		text = plain
	}
	return true
}

// foreignAmong reports whether a reading of an authority that has no escapes is
// another's. Most have no length of a clientId's, and are looked at no further.
func (l *look) foreignAmong(text []byte, class authorityClass) bool {
	if class&severalReadings == 0 {
		return l.foreign(text, class)
	}
	list, n := readings(text)
	for _, one := range list[:n] {
		if l.foreign(one, class) {
			return true
		}
	}
	return false
}

// foreign reports whether a clientId is another's.
func (l *look) foreign(id []byte, class authorityClass) bool {
	if class&notASCII == 0 && !l.subjects.hasLength(len(id)) {
		return false
	}
	owner := l.owner(id, class)
	return owner != "" && owner != l.own
}

// owner returns whose a clientId is, "" if it is nobody's. Most lengths are no
// clientId's. It has at most what class says.
func (l *look) owner(id []byte, class authorityClass) string {
	switch {
	case len(id) > 3*maxClientIDLen: // in lower case it may be a third as long
		return ""
	case class&notASCII != 0 && !isASCII(id):
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
	user, last, port := -1, -1, -1 // the first and the last @, and the last colon
	for i, c := range text {
		switch c {
		case '@':
			last, user = i, first(user, i)
		case ':':
			port = i
		}
	}
	froms := [...]int{0, user + 1, last + 1}
	for i, from := range froms {
		if i > 0 && from == froms[i-1] {
			continue
		}
		list[n] = text[from:]
		n++
		if port >= from {
			list[n] = text[from:port]
			n++
		}
	}
	return list, n
}

// packed looks at what is in base64 up to a mark, or from where the part begins to the end,
// since base64 may have slashes of its own: channels of resource watches are named so.
func (l *look) packed(p *part, end int) bool {
	if !p.cut {
		p.cut = true
		for _, c := range []byte("?#") {
			if at := bytes.IndexByte(p.path, c); at >= 0 {
				p.path = p.path[:at]
			}
		}
		if p.at >= len(p.path) {
			return false
		}
	}
	rest, whole := p.path[p.at:], min(end, len(p.path))
	if len(rest) < minPacked || !begins(rest, minPacked) {
		return false
	}
	return p.starts < maxStarts && whole < len(p.path) && l.base64(rest, p.nested) || l.base64(p.path[p.at:whole], p.nested)
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

// mayBegin reports whether four characters may be the first of base64 that begins accepts. Most
// of those of a text may not.
func mayBegin(text [4]byte) bool {
	one, two, three, four := base64Values[text[0]], base64Values[text[1]], base64Values[text[2]], base64Values[text[3]]
	if one|two|three|four >= 64 { // what they decode to is further behind
		return one != 65 && two != 65 && three != 65 && four != 65
	}
	first, second, third := one<<2|two>>4, two<<4|three>>2, three<<6|four
	switch {
	case !beginning[first]:
		return false
	case !ofScheme(first): // a blank, or no URI
		return true
	}
	return goesOn[second] && (goesOn[third] || second == ':' || second == '%')
}

// goesOn is true for the bytes that begins accepts behind one that is of a scheme, and of a scheme
// themselves.
var goesOn = func() (may [256]bool) {
	for c := range may {
		may[c] = ofScheme(byte(c)) || isDropped(byte(c)) || c == ':' || c == '%'
	}
	return may
}()

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
		if c, ok := escapeAt(text, at); l.tooMuch(perEscape) || ok && (isMark[c] || c == '%' || c == '?' || c == '#' || c == '@' || base64Values[c] != 65 || ofScheme(c)) {
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
