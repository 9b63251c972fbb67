package gate

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
)

// rootChannel is the channel of the whole host.
const rootChannel = "ahp-root://"

// Bounds of what is looked at to judge a URI.
const (
	maxURI    = 4096 // bytes; longer ones are out of reach
	maxOwners = 32   // channels that it belongs to, directly or not
)

// A reach is which channels and files a client may reach: those that its
// patterns take, and what belongs to them, as the host has said. URIs are
// compared as [canonical] writes them; one that is not canonical is taken only
// as it is written.
type reach struct {
	lists patternLists
	root  bool // the root itself is in reach
	host  *view.Host
	progress
	inReach map[string]bool // channels that are in reach
	changes uint64          // of host, when that was so
}

// A patternList is a list of patterns, as given and canonical.
type patternList struct{ given, canonical []string }

func newPatternList(list []string) patternList { return patternList{list, canonicalPatterns(list)} }

func newReach(lists [][]string, host *view.Host) *reach {
	r := &reach{host: host, progress: newProgress(), inReach: map[string]bool{}}
	for _, list := range lists {
		r.lists = append(r.lists, newPatternList(list))
	}
	r.root = r.allows(rootChannel)
	return r
}

// maxInReach bounds what a connection remembers of where the host speaks.
const maxInReach = 64

// allowsNext is allows for what the host says: it speaks on few channels, and
// often. What is in reach stays so until something may have left its owner.
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

// allows reports whether a URI is in reach: it is named, or lies below what is.
func (r *reach) allows(uri string) bool { return r.objection(uri) == nil }

// errOut reports a URI that is out of reach.
var errOut = errors.New("out of reach")

// objection says why a URI is out of reach. One of a file is never taken as it
// is written: whatever it looks like, it is to lead below what is named.
func (r *reach) objection(uri string) error {
	if uri == "" || len(uri) > maxURI {
		return errOut
	}
	file := isFile(uri)
	if err := r.taken(uri, file); err == nil || file || !r.belongs(uri, map[string]bool{}) {
		return err
	}
	return nil
}

// contentObjection says why what a URI names may not be read: it is out of reach,
// and no content of what is in reach.
func (r *reach) contentObjection(uri string) error {
	is := func(u string) bool { return slices.ContainsFunc(r.host.ContentOf(u), r.allows) }
	if above(Key(uri), is) || is(uri) {
		return nil
	}
	return r.objection(uri)
}

// taken says why the patterns do not take a URI.
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

// belongs reports whether a URI, or one that it lies below, belongs to what the
// patterns take, as the host has said. Seen are the channels that it belongs
// to, as far as they were looked at. Files belong to nothing.
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

// patternLists are lists of patterns of which each must take a URI.
type patternLists []patternList

// match reports whether a URI stands there itself.
func (lists patternLists) match(uri string) bool {
	for _, list := range lists {
		if !slices.Contains(list.given, uri) {
			return false
		}
	}
	return true
}

// takeBelow reports whether the patterns take a canonical URI, or one that it
// lies below. Who decodes before taking a URI apart takes an encoded ? or # for
// the end of the path: so no star stands for it, unless what is before it is
// taken too.
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

// above reports whether is holds for a canonical URI, or for one that it lies
// below.
func above(uri string, is func(string) bool) bool {
	for end := len(uri); end > 0; end = strings.LastIndexByte(uri[:end], '/') {
		if is(uri[:end]) {
			return true
		}
	}
	return false
}

// Key is how URIs are compared: canonical if they are, else as they are
// written.
func Key(uri string) string {
	if plain, err := canonical(uri); err == nil {
		return plain
	}
	return uri
}

// hinted reports whether a client may ask for what may be a terminal that
// belongs to what is in reach: its state tells whose it is.
func (r *reach) hinted(uri string) bool { return slices.ContainsFunc(r.host.Hinted(uri), r.allows) }

// judge says why a request or notification of the client's is out of reach.
func (r *reach) judge(where target, env *ahp.Envelope) *refusal {
	switch where {
	case onAny, onList, onResource: // of which files are judged alike, whatever channels are
		return nil
	case onSubscribe:
		return r.judgeSubscriptions(env)
	case onHost:
		return r.judgeURI(rootChannel)
	}
	if string(env.Method) == "subscribe" {
		switch channel := string(env.Channel); {
		case channel == rootChannel:
			return r.judgeRoot(env)
		case r.hinted(channel):
			return nil // the answer tells
		}
	}
	if no := r.judgeURI(string(env.Channel)); no != nil {
		return no
	}
	if where == onChannel {
		return r.judgeMore(env)
	}
	return r.judgeSources(env)
}

func (r *reach) judgeURI(uri string) *refusal {
	return notFor(uri, r.objection(uri))
}

// notFor is the refusal of a URI, nil if there is no objection to it.
func notFor(uri string, objection error) *refusal {
	switch objection {
	case nil:
		return nil
	case errOut:
		return no("this token is not for %s", quote(uri))
	}
	return no("this token is not for %s: %v", quote(uri), objection)
}

// quote shortens a URI for an error.
func quote(uri string) string {
	switch {
	case uri == "":
		return "what names no channel"
	case len(uri) > 200:
		return "a channel of so long a name"
	}
	return strings.ToValidUTF8(uri, "?")
}

// judgeRoot lets anybody subscribe to the root, whose state and actions are
// made to fit; but not in frames of flow control, which are not.
func (r *reach) judgeRoot(env *ahp.Envelope) *refusal {
	m := [...]ahp.Member{{Name: "flowControl"}}
	if ahp.Spelt(env.Params, m[:]) != nil {
		return unreadable
	}
	if m[0].Raw != nil {
		return r.judgeURI(rootChannel)
	}
	return nil
}

// judgeSubscriptions looks at the lists of channels with which a connection
// begins. A client that resumes with one of which nothing is known is told
// what hosts tell clients that they do not know: it begins anew, and learns
// what it needs.
func (r *reach) judgeSubscriptions(env *ahp.Envelope) *refusal {
	list, no := subscriptionsOf(env)
	if no != nil {
		return no
	}
	for _, channel := range list {
		switch {
		case channel == rootChannel:
		case string(env.Method) == "reconnect":
			if !r.allows(channel) {
				return &refusal{ahp.CodeNotFound, "this token is not known to be for " + quote(channel) + "; begin with initialize"}
			}
		default:
			if no := r.judgeURI(channel); no != nil {
				return no
			}
		}
	}
	return nil
}

// subscriptionsOf returns the channels with which a connection begins, in all
// forms of them.
func subscriptionsOf(env *ahp.Envelope) (channels []string, refused *refusal) {
	unclear := no("subscriptions that cannot be read")
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

// listOf returns the elements of a list that may be absent.
func listOf(raw []byte) ([]ahp.Member, bool) {
	if ahp.IsNone(raw) {
		return nil, true
	}
	return ahp.Elements(raw)
}

// moreKeys are where a method may name something beside its channel, what a
// terminal is claimed for among it.
var moreKeys = []string{"session", "chat", "claim"}

// judgeMore wants what a method names beside its channel in reach.
func (r *reach) judgeMore(env *ahp.Envelope) *refusal {
	if !ahp.IsObject(env.Params) {
		return nil
	}
	_, no := judgeKeys(env.Params, moreKeys, maxNested, r.judgeURI)
	return no
}

// sourceKeys are where methods name what something is made from.
var sourceKeys = []string{"session", "source", "fork", "parent", "target", "destination", "automation"}

// judgeSources wants what something is made from in reach. What it is made to
// be is the host's to decide, unless that is known to be somebody else's.
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

// chatScheme is that of chats, and never that of sessions, which have those of
// their providers.
const chatScheme = "ahp-chat:"

// judgeNew wants a chat that is to be made not to be there already as somebody
// else's, nor to be what may be another session: a host that takes it for what the
// client has made shows it to the client.
func (r *reach) judgeNew(env *ahp.Envelope) *refusal {
	m := [...]ahp.Member{{Name: "chat"}}
	if ahp.Spelt(env.Params, m[:]) != nil {
		return unreadable
	}
	uri, ok := ahp.Text(m[0].Raw)
	switch {
	case m[0].Raw == nil: // the host names it
		return nil
	case !ok:
		return unreadable
	case !strings.HasPrefix(uri, chatScheme), len(r.host.Owners(uri)) > 0:
		return r.judgeURI(uri)
	}
	if session := sessionIn(uri); session != "" {
		return r.judgeURI(session)
	}
	return nil
}

// sessionIn returns the session that the URI of a chat says, as those of VS Code
// do, ahp-chat://name/base64 of the session's; "" for none.
func sessionIn(chat string) string {
	name := chat[strings.LastIndexByte(chat, '/')+1:]
	session, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(name, "="))
	scheme, _, ok := strings.Cut(string(session), ":")
	if err != nil || !ok || !isScheme(strings.ToLower(scheme)) {
		return ""
	}
	return string(session)
}

// How deep URIs may stand in params.
const (
	textOnly  = 1
	maxNested = 5
)

var unreadable = no("params that cannot be read")

// judgeKeys wants the URIs below some keys to be allowed, and counts them.
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

// nestedKeys are where an object names a URI.
var nestedKeys = []string{"channel", "chat", "session", "resource", "uri", "source", "automation"}

// judgeValue wants a URI, or those in an object or array, to be allowed.
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
