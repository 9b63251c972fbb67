package gate

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"ahprelay/ahp"
)

// Hosts have URIs for files on clients' machines, with the clientId as the authority:
// vscode-agent-client://<clientId>/file/-/home/ada/notes.txt. If a client requests such a
// URI, the host asks the client with that clientId for the file. So a client could read
// files of another subject's client. These URIs occur in many places, and hosts parse
// them in many ways: as strings, as objects with a member "authority", and in a channel's
// name as base64 of JSON. So the gate searches all strings in a request, and considers
// every reading that a parser could choose. If an authority in any reading is the
// clientId of another subject, the request is refused.

// clientScheme is part of every URI scheme for clients' files, and of no other scheme.
// The authority in such a URI must be the requesting subject's own clientId.
const clientScheme = "agent-client"

// Limits for the search for other subjects' files in a request. A request with deeper
// nesting is refused.
const (
	maxEscapes = 4        // levels of percent-encoding
	maxPacks   = 3        // levels of base64 within base64
	maxPacked  = 64 << 10 // bytes of base64; no channel's name is longer
	minPacked  = 8        // bytes of base64; every URI with an authority is longer
	maxStarts  = 8        // places where base64 with slashes may start: at the text's start, or behind a mark in scheme://user@name:port/
)

// The cost of a search is counted in steps. A step takes about a nanosecond at most,
// except while JSON in a text is parsed. A request may use enough steps, in proportion to
// its length, to search any natural text completely. A request that was crafted to cost
// more is refused.
const (
	freeSteps   = 128 << 10 // steps that each request may use
	stepsPerTwo = 5         // additional steps for each two bytes of params

	perString    = 18  // a string; each of its bytes costs half a step more
	perMarked    = 23  // a string that could name a file; each of its bytes costs half a step more
	perMark      = 5   // a slash or colon
	perAuthority = 20  // the start of an authority
	perOwner     = 600 // an authority whose length is that of a clientId
	perPiece     = 12  // a piece that could be base64
	perEscape    = 8   // an escape
	perRound     = 30  // a round of decoding escapes, in addition to the escapes
	perUnpacked  = 280 // a piece that begins like a URI or JSON, and is decoded and read
	perPacked    = 12  // each byte of such a piece
)

// foreignFile returns an objection if a request names a file of another subject's client,
// or if its search costs too much.
func (i *Identity) foreignFile(env *ahp.Envelope) objection {
	l := newSearch(i.subjects, i.user.Subject, len(env.Params))
	data := string(env.Method) == "resourceWrite" && ahp.IsObject(env.Params)
	switch found := l.text(env.Channel, 0) || l.strings(env.Params, data, 0); {
	case l.left < 0:
		return refusedSearch
	case found:
		return refusedFile
	}
	return none
}

// A search looks for URIs that name foreign files: files of other subjects' clients.
type search struct {
	subjects *Subjects
	own      string // the requesting subject
	left     int    // remaining steps

	escapedAuthority bool // the last text had an authority with a percent-escape
}

func newSearch(subjects *Subjects, own string, size int) search {
	return search{subjects: subjects, own: own, left: freeSteps + size*stepsPerTwo/2}
}

// tooMuch counts steps, and reports whether the request has used too many.
func (l *search) tooMuch(steps int) bool {
	l.left -= steps
	return l.left < 0
}

// strings reports whether a string in a JSON value names a foreign file. If data is set,
// the value is an object, and strings skips its member data: the content that
// resourceWrite writes.
func (l *search) strings(raw []byte, data bool, nested int) (found bool) {
	ahp.Strings(raw, func(s ahp.StringAt) bool {
		switch {
		case s.Text == nil: // hosts replace invalid text, each in its own way
			found = true
		case l.tooMuch(perString + len(s.Text)/2):
			found = true
		case data && s.Depth == 1 && string(s.Key) == "data":
		case len(s.Text) > maxSearched:
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

// maxSearched is how much of a long string is searched, if the string as a whole is no
// URI. Hosts do not read a URI from the middle of a longer text or a picture.
const maxSearched = 32 << 10

// long searches a string longer than maxSearched. It refuses a string that could be a URI
// as a whole, because real URIs are not so long, except those with inline content.
func (l *search) long(text []byte, nested int) bool {
	var start []byte
	for _, c := range text {
		if len(start) == maxSearched {
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
	return l.text(text[:maxSearched], nested)
}

// hasClientScheme reports whether an object in a JSON value has a member "scheme" with a
// scheme for clients' files.
func hasClientScheme(raw []byte) (found bool) {
	ahp.Strings(raw, func(s ahp.StringAt) bool {
		found = bytes.EqualFold(s.Key, []byte("scheme")) && strings.Contains(strings.ToLower(string(s.Text)), clientScheme)
		return !found
	})
	return found
}

// text reports whether a text names a foreign file, also if it is percent-encoded several
// times.
func (l *search) text(text []byte, nested int) bool {
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

// marksIn marks the slashes, backslashes and colons in a word of eight bytes. The lowest
// mark is correct; marks above it may be false.
func marksIn(word uint64) uint64 {
	s, b, c := word^'/'*lowBits, word^'\\'*lowBits, word^':'*lowBits
	return ((s-lowBits)&^s | (b-lowBits)&^b | (c-lowBits)&^c) & highBits
}

// firstMark returns the index of the first byte without which a text cannot name a file:
// a slash, backslash, colon or percent sign. If there is none, it returns the text's
// length.
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

// isSlash reports whether a parser may treat a byte as a slash.
func isSlash(c byte) bool { return c == '/' || c == '\\' }

// isDropped reports whether some URI parsers drop a byte.
func isDropped(c byte) bool { return c == '\t' || c == '\n' || c == '\r' }

// parts searches a text: the authority after two slashes, and each part between marks
// that could be base64. There are no marks before start. Each branch is a mark, found in
// one pass over eight bytes at a time.
func (l *search) parts(text []byte, start, nested int) bool {
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

// A part is the part of a text that is being searched.
type part struct {
	text, path []byte // path is the text before a query or fragment, once it is cut
	cut        bool
	nested     int
	at         int // where the current part begins
	starts     int // marks before it

	lookedForUser, user bool // see hasUser
}

// hasUser reports whether the text's authority may begin with a user name. It looks for @
// once.
func (p *part) hasUser() bool {
	if !p.lookedForUser {
		p.lookedForUser, p.user = true, bytes.IndexByte(p.text, '@') >= 0
	}
	return p.user
}

// mayBePacked reports whether the current part, or the rest of the text from there, could
// be base64 that must be searched.
func (p *part) mayBePacked() bool {
	return p.at+minPacked <= len(p.path) && mayBegin([4]byte(p.path[p.at:]))
}

// mayFollow contains the bytes that may follow the first slash before an authority: a
// second slash, or a byte that some parsers drop.
var mayFollow = [256]bool{'/': true, '\\': true, '\t': true, '\n': true, '\r': true}

// authorityBehind searches the authority after two slashes. at is the index of the first
// slash. If there are three, a parser may use the last two.
func (l *search) authorityBehind(p *part, at int) bool {
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

// authorityAt searches an authority. It considers all places where parsers could end the
// authority: a slash, query or fragment, if the beginning is clear; a byte that is
// invalid in a URI; and a backslash, after some parsers have dropped bytes. It finds them
// in one pass, so that long texts are cheap; each branch is such a place.
func (l *search) authorityAt(before, rest []byte, plain bool) bool {
	end, lenient, drops := -1, -1, false
	port, endPort := -1, -1 // the last colon, and the last colon before end
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
	if !client && class&^(severalReadings|ends|mayEnd) == 0 { // the usual case
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

// foreignTo calls foreign for the text before index at; -1 means none.
func (l *search) foreignTo(text []byte, at int, class authorityClass) bool {
	return at >= 0 && l.foreign(text[:at], class)
}

func first(found, at int) int {
	if found < 0 {
		return at
	}
	return found
}

// dropped returns a text without the bytes that some parsers drop.
func dropped(text []byte) []byte {
	var out []byte
	for _, c := range text {
		if !isDropped(c) {
			out = append(out, c)
		}
	}
	return out
}

// maxScheme is how many bytes before a colon are searched for a scheme.
const maxScheme = 256

// ofClient reports whether a text ends with a scheme for clients' files and a colon.
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

// isClientScheme reports whether a scheme is for clients' files. It ignores bytes that
// some parsers drop.
func isClientScheme(scheme []byte) bool {
	var buffer [maxScheme]byte
	small := buffer[:0]
	for _, c := range scheme {
		if !isDropped(c) {
			small = append(small, c|0x20) // a letter becomes lower case
		}
	}
	return bytes.Contains(small, []byte(clientScheme))
}

func ofScheme(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'
}

// An authorityClass is a set of properties of the bytes in an authority.
type authorityClass uint8

const (
	severalReadings authorityClass = 1 << iota // an escape, or a byte that could end a user or begin a port
	escapes
	notASCII
	ends   // a slash, or the start of a query or fragment
	mayEnd // invalid in a URI
	isLost // some parsers drop it
	isBack // a backslash
	isAt   // the end of a user
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

func authorityClassOf(text []byte) (class authorityClass) {
	for _, c := range text {
		class |= classOf[c]
	}
	return class
}

// authority reports whether an authority is another subject's clientId. If client is set,
// the URI is for a client's file; then an unknown clientId counts as foreign too, because
// another subject could use it later. class contains at least the text's properties.
func (l *search) authority(text []byte, client bool, class authorityClass) bool {
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

// foreignAmong reports whether an authority without escapes is another subject's clientId
// in any of the ways in which parsers may read it. Most texts are cheap to check, because
// no clientId has their length.
func (l *search) foreignAmong(text []byte, class authorityClass) bool {
	if class&severalReadings == 0 {
		return l.foreign(text, class)
	}
	list, n := readings(text)
	return slices.ContainsFunc(list[:n], func(one []byte) bool { return l.foreign(one, class) })
}

// foreign reports whether another subject owns a clientId.
func (l *search) foreign(id []byte, class authorityClass) bool {
	if class&notASCII == 0 && !l.subjects.hasLength(len(id)) {
		return false
	}
	owner := l.owner(id, class)
	return owner != "" && owner != l.own
}

// owner returns a clientId's owner, or "". Most texts are cheap to check, because no
// clientId has their length. class contains at least the text's properties.
func (l *search) owner(id []byte, class authorityClass) string {
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

// readings returns all readings of an authority: with and without a possible user and
// port.
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

// packed searches base64 in the current part, up to end, and also in all of the rest,
// because base64 may contain slashes. Channels of resource watches have such names.
func (l *search) packed(p *part, end int) bool {
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

// base64 decodes a text in either base64 alphabet and searches the result, if the
// beginning is plausible.
func (l *search) base64(text []byte, nested int) bool {
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

// mayBegin reports whether base64 that begins with these four characters could pass
// begins. It excludes most texts cheaply.
func mayBegin(text [4]byte) bool {
	one, two, three, four := base64Values[text[0]], base64Values[text[1]], base64Values[text[2]], base64Values[text[3]]
	if one|two|three|four >= 64 { // decoders ignore some of the four characters, so the first bytes come later
		return one != 65 && two != 65 && three != 65 && four != 65
	}
	first, second, third := one<<2|two>>4, two<<4|three>>2, three<<6|four
	switch {
	case !beginning[first]:
		return false
	case !ofScheme(first): // white space, JSON, a path or an escape
		return true
	}
	return goesOn[second] && (goesOn[third] || second == ':' || second == '%')
}

// goesOn contains the bytes that begins accepts after a scheme's first byte.
var goesOn = func() (may [256]bool) {
	for c := range may {
		may[c] = ofScheme(byte(c)) || isDropped(byte(c)) || c == ':' || c == '%'
	}
	return may
}()

// beginning contains the bytes that begins accepts first, including 0xEF from a byte
// order mark.
var beginning = func() (may [256]bool) {
	for c := range may {
		may[c] = c <= ' ' || ofScheme(byte(c)) || strings.IndexByte("{[\"/\\%\xEF", byte(c)) >= 0
	}
	return may
}()

// maxBeginning is the largest number of bytes that begins decodes.
const maxBeginning = 64

// begins decodes the first size bytes of a base64 text. It reports whether the result
// could begin a URI, or JSON that contains strings.
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

// base64Values are the values of characters in both alphabets. A backslash counts as a
// slash. 64 marks characters that decoders ignore, and 65 characters that are not base64.
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

// decodeBase64 appends the decoded text. ok is false if a character is not base64.
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

// escapesNothing reports whether the escapes in a text can stay as they are: none stands for a
// byte of a scheme, of base64 or of another escape, or for a byte that begins or ends an
// authority or a path. It returns false if the search has taken too many steps.
func (l *search) escapesNothing(text []byte) bool {
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

// unescape decodes each escape in a text once, and reports whether there were any.
func (l *search) unescape(text []byte) (plain []byte, escaped bool) {
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

// unescapePercent decodes each valid escape in a URI once.
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
