package gate

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// rootChannel is the channel of the whole host.
const rootChannel = "ahp-root://"

// Bounds of what a connection learns.
const (
	maxLearnt    = 4096
	maxURI       = 4096 // bytes; longer ones are out of reach
	maxAncestors = 4    // how far a client that resumes is followed back
)

// A reach is which channels and files a client may reach: those that its
// patterns take, and what belongs to them. URIs are compared as [canonical]
// writes them; one that is not canonical is taken only as it is written.
type reach struct {
	lists    patternLists
	families *Families
	shared   bool            // symbolic links are followed before a file is judged
	heard    map[string]bool // owned by FromHost's caller: channels that are in reach

	mu       sync.RWMutex // guards the fields below
	learnt   map[string]bool
	patterns []string        // the same, where the host gives a template
	hints    map[string]bool // terminals that may belong to what is in reach
}

// A patternList is a list of patterns, as given and canonical.
type patternList struct{ given, canonical []string }

func newReach(lists [][]string, families *Families, shared bool) *reach {
	r := &reach{families: families, shared: shared, learnt: map[string]bool{}, hints: map[string]bool{}, heard: map[string]bool{}}
	for _, list := range lists {
		r.lists = append(r.lists, patternList{list, canonicalPatterns(list)})
	}
	return r
}

// maxHeard bounds what a connection remembers of where the host speaks.
const maxHeard = 64

// allowsNext is allows for what the host says: it speaks on few channels, and
// often. What is in reach once stays so.
func (r *reach) allowsNext(channel []byte) bool {
	if r.heard[string(channel)] {
		return true
	}
	uri := string(channel)
	if !r.allows(uri) {
		return false
	}
	if len(r.heard) == maxHeard {
		clear(r.heard)
	}
	r.heard[uri] = true
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
	if !file && (r.lists.take(uri) || r.hasLearnt(uri)) {
		return nil
	}
	plain, err := canonical(uri)
	switch {
	case err != nil:
		return err
	case !r.lists.takeBelow(plain) && !r.hasLearntAbove(plain):
		return errOut
	case file && r.shared:
		return r.lists.leadsInside(plain)
	}
	return nil
}

// patternLists are lists of patterns of which each must take a URI.
type patternLists []patternList

// take reports whether a URI stands there itself.
func (lists patternLists) take(uri string) bool {
	for _, list := range lists {
		if !slices.Contains(list.given, uri) {
			return false
		}
	}
	return true
}

// takeBelow reports whether the patterns take a canonical URI, or one that it
// lies below.
func (lists patternLists) takeBelow(uri string) bool {
	for _, list := range lists {
		if !above(uri, func(u string) bool { return auth.MatchesAny(list.canonical, u) }) {
			return false
		}
	}
	return true
}

func (r *reach) hasLearnt(uri string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.learnt[uri]
}

// hasLearntAbove reports whether the host has said that a canonical URI, or
// one that it lies below, belongs to what is in reach.
func (r *reach) hasLearntAbove(uri string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return auth.MatchesAny(r.patterns, uri) || above(uri, func(u string) bool { return r.learnt[u] })
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

// key is how a URI is noted: canonical if it is, else as it is written.
func key(uri string) string {
	if plain, err := canonical(uri); err == nil {
		return plain
	}
	return uri
}

// learn notes that the host has said on a channel in reach that a URI belongs
// to it. Files never do.
func (r *reach) learn(uri, channel string) {
	if uri == "" || len(uri) > maxURI || uri == rootChannel || !strings.Contains(uri, ":") || isFile(uri) {
		return
	}
	uri = key(uri)
	r.families.learn(uri, key(channel))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.learnt) < maxLearnt {
		r.learnt[uri] = true
	}
}

// hint notes a terminal that the client may ask for: its state tells whose it
// is.
func (r *reach) hint(uri string) {
	if uri == "" || len(uri) > maxURI || uri == rootChannel {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.hints) < maxLearnt {
		r.hints[key(uri)] = true
	}
}

func (r *reach) hinted(uri string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.hints[key(uri)]
}

// learnTemplate notes a URI with {variables}. One that says nothing of its own
// before the first of them could be anybody's.
func (r *reach) learnTemplate(template, channel string) {
	before, _, ok := strings.Cut(template, "{")
	if !ok {
		r.learn(template, channel)
		return
	}
	_, path, ok := strings.Cut(strings.TrimSuffix(before, "/"), ":/")
	if len(template) > maxURI || !ok || strings.Trim(path, "/") == "" || strings.Contains(before, "*") || isFile(before) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if pattern := canonicalPattern(before) + auth.All; len(r.patterns) < auth.MaxPatterns && !slices.Contains(r.patterns, pattern) {
		r.patterns = append(r.patterns, pattern)
	}
}

// resumes reports whether a client may subscribe again to a channel: the host
// may have said on an earlier connection that it belongs to one in reach.
func (r *reach) resumes(channel string) bool {
	channel = key(channel)
	ancestor := channel
	for range maxAncestors {
		if ancestor == "" {
			return false
		}
		if r.allows(ancestor) {
			if ancestor != channel {
				r.learn(channel, r.families.parent(channel))
			}
			return true
		}
		ancestor = r.families.parent(ancestor)
	}
	return false
}

// judge says why a request or notification of the client's is out of reach.
func (r *reach) judge(where place, env *ahp.Envelope) *refusal {
	switch where {
	case onAny, onList:
		return nil
	case onSubscribe:
		return r.judgeSubscriptions(env)
	case onResource:
		return r.judgeResource(env)
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
	if no := r.judgeURI(string(env.Channel)); no != nil || where == onChannel {
		return no
	}
	return r.judgeSources(env)
}

func (r *reach) judgeURI(uri string) *refusal {
	switch err := r.objection(uri); {
	case err == nil:
		return nil
	case err != errOut:
		return no("this token is not for %s: %v", quote(uri), err)
	}
	return no("this token is not for %s", quote(uri))
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
	m := [...]ahp.Member{{Name: "initialSubscriptions"}, {Name: "subscriptions"}}
	if ahp.Spelt(env.Params, m[:]) != nil {
		return no("subscriptions that cannot be read")
	}
	for i := range m {
		list, ok := listOf(m[i].Raw)
		if !ok {
			return no("subscriptions that cannot be read")
		}
		for _, e := range list {
			channel, ok := ahp.Text(e.Raw)
			if !ok {
				one := [...]ahp.Member{{Name: "channel"}}
				if ahp.Spelt(e.Raw, one[:]) != nil {
					return no("subscriptions that cannot be read")
				}
				channel, _ = ahp.Text(one[0].Raw)
			}
			switch {
			case channel == rootChannel:
			case string(env.Method) == "reconnect":
				if !r.resumes(channel) {
					return &refusal{ahp.CodeNotFound, "this token is not known to be for " + quote(channel) + "; begin with initialize"}
				}
			default:
				if no := r.judgeURI(channel); no != nil {
					return no
				}
			}
		}
	}
	return nil
}

// listOf returns the elements of a list that may be absent.
func listOf(raw []byte) ([]ahp.Member, bool) {
	if raw == nil || string(raw) == "null" {
		return nil, true
	}
	return ahp.Elements(raw)
}

// resourceKeys are where the resource methods name URIs.
var resourceKeys = []string{"uri", "source", "destination", "target", "from", "to", "root", "resource"}

// judgeResource wants all URIs of a resource method in reach. They are
// strings: hosts that take objects for URIs read them in ways of their own.
func (r *reach) judgeResource(env *ahp.Envelope) *refusal {
	if env.Channel != nil && string(env.Channel) != rootChannel {
		if no := r.judgeURI(string(env.Channel)); no != nil {
			return no
		}
	}
	named, no := r.judgeKeys(env.Params, resourceKeys, textOnly)
	if no == nil && named == 0 {
		no = r.judgeURI("")
	}
	return no
}

// sourceKeys are where methods name what something is made from.
var sourceKeys = []string{"session", "source", "fork", "parent", "target", "destination", "automation"}

// judgeSources wants what something is made from in reach. What it is made to
// be is the host's to decide.
func (r *reach) judgeSources(env *ahp.Envelope) *refusal {
	keys := sourceKeys
	if string(env.Method) == "moveChat" {
		keys = append([]string{"chat"}, keys...)
	}
	_, no := r.judgeKeys(env.Params, keys, maxNested)
	return no
}

// How deep URIs may stand in params.
const (
	textOnly  = 1
	maxNested = 5
)

var unreadable = no("params that cannot be read")

// judgeKeys wants the URIs below some keys in reach, and counts them.
func (r *reach) judgeKeys(params []byte, keys []string, depth int) (named int, refused *refusal) {
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
		n, no := r.judgeValue(m[i].Raw, depth-1)
		if no != nil {
			return 0, no
		}
		named += n
	}
	return named, nil
}

// nestedKeys are where an object names a URI.
var nestedKeys = []string{"channel", "chat", "session", "resource", "uri", "source", "automation"}

// judgeValue wants a URI, or those in an object or array, in reach.
func (r *reach) judgeValue(raw []byte, depth int) (named int, refused *refusal) {
	switch raw[0] {
	case '"':
		uri, _ := ahp.Text(raw)
		return 1, r.judgeURI(uri)
	case '{':
		return r.judgeKeys(raw, nestedKeys, depth)
	case '[':
		if depth == 0 {
			return 0, unreadable
		}
		for _, e := range elements(raw) {
			n, no := r.judgeValue(e.Raw, depth-1)
			if no != nil {
				return 0, no
			}
			named += n
		}
	}
	return named, nil
}
