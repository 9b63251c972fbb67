package gate

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
)

// Limits for judging a URI.
const (
	maxURI    = 4096 // bytes; longer URIs are out of reach
	maxOwners = 32   // channels to which a URI may belong, directly or indirectly
)

// A reach is the set of channels and files that a client may reach: those that match its
// patterns, and those that belong to such channels according to the host. URIs are
// compared in canonical form. A URI without canonical form must equal a pattern
// literally.
type reach struct {
	lists  patternLists
	hidden map[string]bool // canonical URIs; these, and everything that belongs to them, are out of reach
	root   bool            // the root is in reach; false if channels are hidden, so that everything is filtered
	host   *view.Host
	progress
	inReach map[string]bool // a cache of channels in reach
	changes uint64          // host.Changes() when the cache was filled
}

// A patternList has patterns as given, and in canonical form.
type patternList struct{ given, canonical []string }

func newPatternList(list []string) patternList { return patternList{list, canonicalPatterns(list)} }

func newReach(lists [][]string, hidden []string, host *view.Host) *reach {
	r := &reach{host: host, progress: newProgress(), inReach: map[string]bool{}, hidden: map[string]bool{}}
	for _, uri := range hidden {
		r.hidden[Key(uri)] = true
	}
	for _, list := range lists {
		r.lists = append(r.lists, newPatternList(list))
	}
	r.root = r.allows(ahp.RootChannel)
	return r
}

// maxInReach is the size of a connection's cache of channels in reach.
const maxInReach = 64

// allowsNext is allows with a cache, for hosts' messages, because a host sends many
// messages on few channels. The cache is cleared when a channel may have left its owner.
func (r *reach) allowsNext(channel []byte) bool {
	if changes := r.host.Changes(); changes != r.changes {
		r.changes = changes
		clear(r.inReach)
	}
	if r.inReach[string(channel)] {
		return true
	}
	uri := string(channel)
	if !r.allows(uri) {
		return false
	}
	if len(r.inReach) == maxInReach {
		clear(r.inReach)
	}
	r.inReach[uri] = true
	return true
}

func (r *reach) allows(uri string) bool { return r.objection(uri) == nil }

var errOut = errors.New("out of reach")

// objection returns the reason why a URI is out of reach, or nil. In reach are URIs that
// match a pattern, URIs below such a URI, and URIs that belong to either according to the
// host. Hidden channels are out of reach. For files a literal match is not enough: the
// canonical path must match.
func (r *reach) objection(uri string) error {
	if uri == "" || len(uri) > maxURI {
		return errOut
	}
	file := isFile(uri)
	if len(r.hidden) > 0 && (uri == ahp.RootChannel || !file && r.hides(uri, map[string]bool{})) {
		return errOut
	}
	if err := r.taken(uri, file); err == nil || file || !r.belongs(uri, map[string]bool{}) {
		return err
	}
	return nil
}

// hides reports whether a URI is a hidden channel, lies below one, or belongs to one. A
// terminal stays hidden when it has left a hidden session, because it shows that session's output. It
// returns true for a URI without canonical form, because a host could read that as any
// URI, and for a channel of a forgotten session, until the host names the channel again.
func (r *reach) hides(uri string, seen map[string]bool) bool {
	if seen[uri] {
		return false
	}
	plain, err := canonical(uri)
	if err != nil || len(seen) >= maxOwners {
		return true
	}
	seen[uri] = true
	sessions := sessionsIn(plain)
	if slices.ContainsFunc(sessions, func(session string) bool { return session != uri && r.hides(session, seen) }) {
		return true
	}
	return above(plain, func(u string) bool {
		owners := append(r.host.Owners(u), r.host.FormerOwners(u)...)
		return r.hidden[u] || slices.ContainsFunc(owners, func(owner string) bool { return !isFile(owner) && r.hides(owner, seen) })
	}) || len(sessions) == 0 && r.forgotten(plain)
}

// forgotten reports whether a canonical URI belongs to a session that is not remembered.
func (r *reach) forgotten(uri string) bool {
	return r.host.Forgot() && slices.ContainsFunc(ofSessions, func(scheme string) bool { return strings.HasPrefix(uri, scheme) }) &&
		!above(uri, func(u string) bool { return len(r.host.Owners(u)) > 0 })
}

// judgeContent refuses reads of content that belongs to hidden channels.
func (r *reach) judgeContent(env *ahp.Envelope) *refusal {
	if len(r.hidden) == 0 || !ahp.IsObject(env.Params) {
		return nil
	}
	_, no := judgeKeys(env.Params, resourceKeys, textOnly, r.judgeHidden)
	return no
}

// judgeHidden refuses a URI of content that belongs to hidden channels, and canvas content that is not
// remembered, until the host names it again.
func (r *reach) judgeHidden(uri string) *refusal {
	named := false
	hides := func(u string) bool {
		of := r.host.ContentOf(u)
		named = named || len(of) > 0
		return slices.ContainsFunc(of, func(of string) bool { return r.hides(of, map[string]bool{}) })
	}
	if hides(uri) || above(Key(uri), hides) || !named && r.host.ForgotContent() && contentRules[bareScheme(uri)] == byCanvas {
		return notFor(uri, errOut)
	}
	if isFile(uri) {
		return nil
	}
	return r.judgeURI(uri)
}

// judgeCanvas refuses a read at a canvas in reach if the URI is the content of a different
// canvas, because a host may serve it. fileReach judges all other URIs.
func (r *reach) judgeCanvas(env *ahp.Envelope) *refusal {
	m := [...]ahp.Member{{Name: "uri"}}
	if ahp.Spelt(env.Params, m[:]) != nil {
		return unreadable
	}
	uri, ok := ahp.Text(m[0].Raw)
	scheme := bareScheme(uri)
	switch {
	case !ok && !ahp.IsNone(m[0].Raw):
		return unreadable
	case contentRules[scheme] != byCanvas:
		return nil
	case len(r.lists) == 0:
		return r.judgeHidden(uri)
	}
	plain, err := canonical(uri)
	if err != nil {
		return notFor(uri, err)
	}
	canvas, known := r.host.Canvas(string(env.Channel))
	own := canvas.Instance != "" && above(plain, func(u string) bool { return u == Key(scheme+":/"+canvas.Instance) })
	if own || !known && !above(plain, func(u string) bool { return len(r.host.ContentOf(u)) > 0 }) { // if nothing is known, the host decides
		return nil
	}
	return notFor(uri, r.contentObjection(uri))
}

// contentObjection returns the reason why a URI may not be read, or nil if it is in reach
// or is content of a channel in reach.
func (r *reach) contentObjection(uri string) error {
	is := func(u string) bool { return slices.ContainsFunc(r.host.ContentOf(u), r.allows) }
	if plain, err := canonical(uri); err == nil && above(plain, is) || is(uri) {
		return nil
	}
	return r.objection(uri)
}

// taken returns the reason why the patterns do not match a URI, or nil.
func (r *reach) taken(uri string, file bool) error {
	if !file && r.lists.match(uri) {
		return nil
	}
	plain, err := canonical(uri)
	switch {
	case err != nil:
		return err
	case !r.lists.takeBelow(plain):
		return errOut
	}
	return nil
}

// belongs reports whether a URI, or a URI above it, belongs to a channel that matches the
// patterns, according to the host. seen contains the owners visited so far. Files belong
// to no channel.
func (r *reach) belongs(uri string, seen map[string]bool) (found bool) {
	is := func(u string) bool {
		return slices.ContainsFunc(r.host.Owners(u), func(owner string) bool { return r.owns(owner, seen) })
	}
	if plain, err := canonical(uri); err == nil {
		return above(plain, is)
	}
	return is(uri)
}

func (r *reach) owns(owner string, seen map[string]bool) bool {
	if seen[owner] || len(seen) >= maxOwners {
		return false
	}
	seen[owner] = true
	file := isFile(owner)
	return r.taken(owner, file) == nil || !file && r.belongs(owner, seen)
}

// patternLists are lists of patterns. A URI must match every list.
type patternLists []patternList

// match reports whether each list contains the URI literally.
func (lists patternLists) match(uri string) bool {
	for _, list := range lists {
		if !slices.Contains(list.given, uri) {
			return false
		}
	}
	return true
}

// takeBelow reports whether the patterns match a canonical URI, or a URI above it. A
// parser that decodes a URI before splitting it would end the path at an encoded ? or #.
// So a star matches an encoded ? or # only if a pattern also matches the part before it.
func (lists patternLists) takeBelow(uri string) bool {
	cut := len(uri)
	for _, mark := range []string{"%3F", "%23"} {
		if i := strings.Index(uri, mark); i >= 0 {
			cut = min(cut, i)
		}
	}
	for _, list := range lists {
		takes := func(u string) bool { return auth.MatchesAny(list.canonical, u) }
		named := func(u string) bool { return !strings.Contains(u, "*") && slices.Contains(list.canonical, u) }
		if !above(uri, takes) || !above(uri[:cut], takes) && !above(uri, named) {
			return false
		}
	}
	return true
}

// above reports whether is returns true for a canonical URI or for a URI above it.
func above(uri string, is func(string) bool) bool {
	for end := len(uri); end > 0; end = strings.LastIndexByte(uri[:end], '/') {
		if is(uri[:end]) {
			return true
		}
	}
	return false
}

// Key returns the form in which URIs are compared: the canonical form or, without one,
// the URI itself.
func Key(uri string) string {
	if plain, err := canonical(uri); err == nil {
		return plain
	}
	return uri
}

// hinted reports whether a URI may be a terminal that belongs to a channel in reach. A
// client may subscribe to it, because only the terminal's state shows the owner.
func (r *reach) hinted(uri string) bool { return slices.ContainsFunc(r.host.Hinted(uri), r.allows) }

// judge returns the reason why a client's message is out of reach, or nil.
func (r *reach) judge(target ahp.Target, env *ahp.Envelope) *refusal {
	switch target {
	case ahp.OnConnection, ahp.OnList, ahp.OnResources: // fileReach judges resources
		return nil
	case ahp.OnSubscriptions:
		return r.judgeSubscriptions(env)
	case ahp.OnHost:
		if len(r.hidden) > 0 && r.lists.match(ahp.RootChannel) {
			return nil
		}
		return r.judgeURI(ahp.RootChannel)
	}
	if string(env.Method) == "subscribe" {
		switch channel := string(env.Channel); {
		case channel == ahp.RootChannel:
			return r.judgeRoot(env)
		case r.hinted(channel):
			return nil // the response shows the terminal's owner, and is judged then
		}
	}
	if no := r.judgeURI(string(env.Channel)); no != nil {
		return no
	}
	if string(env.Method) == "canvasReadResource" {
		if no := r.judgeCanvas(env); no != nil {
			return no
		}
	}
	if target == ahp.OnChannel {
		return r.judgeMore(env)
	}
	return r.judgeSources(env)
}

func (r *reach) judgeURI(uri string) *refusal {
	return notFor(uri, r.objection(uri))
}

// notFor returns the refusal for a URI, or nil if objection is nil.
func notFor(uri string, objection error) *refusal {
	switch objection {
	case nil:
		return nil
	case errOut:
		return no("this token does not cover %s", quote(uri))
	}
	return no("this token does not cover %s: %v", quote(uri), objection)
}

func quote(uri string) string {
	switch {
	case uri == "":
		return "a missing channel"
	case len(uri) > 200:
		return "a channel with so long a name"
	}
	return strings.ToValidUTF8(uri, "?")
}

// judgeRoot permits subscriptions to the root, whose state and actions are filtered. It
// refuses flow control, because frames are not filtered.
func (r *reach) judgeRoot(env *ahp.Envelope) *refusal {
	m := [...]ahp.Member{{Name: "flowControl"}}
	if ahp.Spelt(env.Params, m[:]) != nil {
		return unreadable
	}
	if m[0].Raw != nil {
		return r.judgeURI(ahp.RootChannel)
	}
	return nil
}

// judgeSubscriptions judges the channels in initialize and reconnect. If a client resumes
// an unknown channel, it gets the error that hosts use for unknown clients. The client
// then begins anew, and the host's response shows which channels belong together.
func (r *reach) judgeSubscriptions(env *ahp.Envelope) *refusal {
	list, no := subscriptionsOf(env)
	if no != nil {
		return no
	}
	for _, channel := range list {
		switch {
		case channel == ahp.RootChannel:
		case string(env.Method) == "reconnect":
			if !r.allows(channel) {
				return &refusal{ahp.CodeNotFound, "this token is not known to cover " + quote(channel) + "; begin with initialize"}
			}
		default:
			if no := r.judgeURI(channel); no != nil {
				return no
			}
		}
	}
	return nil
}

// subscriptionsOf returns the channels in initialize or reconnect, in all forms that AHP
// has.
func subscriptionsOf(env *ahp.Envelope) (channels []string, refused *refusal) {
	unclear := no("unreadable subscriptions")
	m := [...]ahp.Member{{Name: "initialSubscriptions"}, {Name: "subscriptions"}, {Name: "windows"}}
	w := [...]ahp.Member{{Name: "items"}}
	if env.Params == nil || ahp.Spelt(env.Params, m[:]) != nil || !ahp.IsNone(m[2].Raw) && ahp.Spelt(m[2].Raw, w[:]) != nil {
		return nil, unclear
	}
	for _, raw := range [][]byte{m[0].Raw, m[1].Raw, w[0].Raw} {
		list, ok := listOf(raw)
		if !ok {
			return nil, unclear
		}
		for _, e := range list {
			channel, ok := ahp.Text(e.Raw)
			if !ok {
				one := [...]ahp.Member{{Name: "channel"}}
				if ahp.Spelt(e.Raw, one[:]) != nil || one[0].Raw == nil {
					return nil, unclear
				}
				channel, _ = ahp.Text(one[0].Raw)
			}
			channels = append(channels, channel)
		}
	}
	return channels, nil
}

func listOf(raw []byte) ([]ahp.Member, bool) {
	if ahp.IsNone(raw) {
		return nil, true
	}
	return ahp.Elements(raw)
}

// moreKeys are the members in which a method may name a URI in addition to its channel,
// such as a terminal's owner.
var moreKeys = []string{"session", "chat", "claim"}

// judgeMore refuses a message in which a URI in one of moreKeys is out of reach.
func (r *reach) judgeMore(env *ahp.Envelope) *refusal {
	if !ahp.IsObject(env.Params) {
		return nil
	}
	_, no := judgeKeys(env.Params, moreKeys, maxNested, r.judgeURI)
	return no
}

// sourceKeys are the members in which a method names the source of a new object.
var sourceKeys = []string{"session", "source", "fork", "parent", "target", "destination", "automation"}

// judgeSources refuses a new object if a source is out of reach. For a new chat, judgeNew
// also judges the chat's own URI.
func (r *reach) judgeSources(env *ahp.Envelope) *refusal {
	keys := sourceKeys
	switch string(env.Method) {
	case "moveChat":
		keys = append([]string{"chat"}, keys...)
	case "createChat":
		if no := r.judgeNew(env); no != nil {
			return no
		}
	}
	_, no := judgeKeys(env.Params, keys, maxNested, r.judgeURI)
	return no
}

// chatScheme begins chat URIs. Sessions have their providers' schemes.
const chatScheme = "ahp-chat:"

// ofSessions begin the URIs of channels that belong to a session.
var ofSessions = []string{chatScheme, "ahp-canvas:", "ahp-changeset:", ahp.MCPScheme}

// judgeNew refuses a new chat whose URI may name something that is out of reach: a session,
// or another session's chat. The host might otherwise show it to the client.
func (r *reach) judgeNew(env *ahp.Envelope) *refusal {
	m := [...]ahp.Member{{Name: "chat"}}
	if ahp.Spelt(env.Params, m[:]) != nil {
		return unreadable
	}
	uri, ok := ahp.Text(m[0].Raw)
	switch {
	case m[0].Raw == nil: // the host chooses the URI
		return nil
	case !ok:
		return unreadable
	case !strings.HasPrefix(uri, chatScheme), len(uri) > maxURI, len(r.host.Owners(uri)) > 0:
		return r.judgeURI(uri)
	}
	plain, err := canonical(uri)
	switch {
	case err != nil:
		return notFor(uri, err)
	case strings.ContainsAny(plain, "?#"): // some hosts read only the part before
		return notFor(uri, errOut)
	}
	for _, session := range sessionsIn(plain) {
		if no := r.judgeURI(session); no != nil {
			return no
		}
	}
	return nil
}

// sessionsIn returns the sessions in a chat's canonical URI, as any host may read them. VS
// Code's chat URIs contain the session's URI in base64: ahp-chat://name/base64, or
// ahp-chat://subagent/base64/call. The query and fragment do not count there.
func sessionsIn(chat string) (list []string) {
	_, hier, _ := strings.Cut(chat, ":")
	if tail := strings.IndexAny(hier, "?#"); tail >= 0 {
		hier = hier[:tail]
	}
	_, path, _ := cutAuthority(hier)
	for _, text := range append(strings.Split(hier, "/"), strings.TrimPrefix(path, "/")) {
		data, ok := decodeBase64(nil, []byte(text))
		session := string(data)
		scheme, _, named := strings.Cut(session, ":")
		if ok && named && isScheme(strings.ToLower(scheme)) && utf8.ValidString(session) {
			list = append(list, session)
		}
	}
	return list
}

// Nesting depth for URIs in params.
const (
	textOnly  = 1
	maxNested = 5
)

var unreadable = no("unreadable params")

// judgeKeys judges the URIs in the members keys of an object, and counts these URIs. depth
// is the number of nested objects and arrays in which it looks for them.
func judgeKeys(params []byte, keys []string, depth int, judge func(uri string) *refusal) (named int, refused *refusal) {
	m := make([]ahp.Member, len(keys))
	for i, key := range keys {
		m[i].Name = key
	}
	if depth == 0 || ahp.Spelt(params, m) != nil {
		return 0, unreadable
	}
	for i := range m {
		if m[i].Raw == nil {
			continue
		}
		n, no := judgeValue(m[i].Raw, depth-1, judge)
		if no != nil {
			return 0, no
		}
		named += n
	}
	return named, nil
}

// nestedKeys are the members in which an object names a URI.
var nestedKeys = []string{"channel", "chat", "session", "resource", "uri", "source", "automation"}

// judgeValue judges a URI, or all URIs in an object or array, and counts them.
func judgeValue(raw []byte, depth int, judge func(uri string) *refusal) (named int, refused *refusal) {
	switch raw[0] {
	case '"':
		uri, _ := ahp.Text(raw)
		return 1, judge(uri)
	case '{':
		return judgeKeys(raw, nestedKeys, depth, judge)
	case '[':
		if depth == 0 {
			return 0, unreadable
		}
		for _, e := range ahp.ElementsOf(raw) {
			n, no := judgeValue(e.Raw, depth-1, judge)
			if no != nil {
				return 0, no
			}
			named += n
		}
	}
	return named, nil
}
