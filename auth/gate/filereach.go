package gate

import (
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A fileRule is the set of files that a token, or a host's owner, permits.
type fileRule struct {
	patternList
	folders bool // also permits files in the working directories of visible sessions
}

// newFileRule returns the rule for a list of channel patterns. For a client below the
// level operate, only patterns with a scheme count.
func newFileRule(channels []string, writes bool) fileRule {
	if !writes {
		channels = slices.DeleteFunc(slices.Clone(channels), func(p string) bool {
			before, _, _ := strings.Cut(p, "*")
			return !strings.Contains(before, ":")
		})
	}
	return fileRule{patternList: newPatternList(channels)}
}

// takes reports whether the patterns match a canonical URI, or a folder above it.
func (r *fileRule) takes(uri string) bool { return patternLists{r.patternList}.takeBelow(uri) }

// maxFolders is the largest number of working directories remembered for a connection.
const maxFolders = 1024

// A fileReach decides which files, and which other content of the resource methods, a
// client may reach.
type fileReach struct {
	rules   []fileRule
	shared  bool   // symbolic links are followed before a file is judged
	reach   *reach // nil: all channels
	limited bool   // the client's channels are limited by patterns, so reach is closed; hidden channels alone leave it open

	writes   bool // the client may operate
	mentions *mentions

	view    *view.Conn
	folders map[string]bool // working directories of visible sessions
}

func newFileReach(p Policy, r *reach, v *view.Conn, t *mentions) *fileReach {
	return &fileReach{
		rules: p.files, shared: p.SharedFiles, reach: r, limited: len(p.Channels) > 0, writes: p.Writes(), mentions: t, view: v, folders: map[string]bool{},
	}
}

// resourceKeys are the members in which resource methods name URIs.
var resourceKeys = []string{"uri", "source", "destination", "target", "from", "to", "root", "resource"}

// judgeResource refuses a resource method if a URI in it is out of reach. URIs must be
// strings, because hosts that accept objects parse them in different ways.
func (f *fileReach) judgeResource(env *ahp.Envelope) *refusal {
	if f.reach != nil && env.Channel != nil && string(env.Channel) != ahp.RootChannel {
		if no := f.reach.judgeURI(string(env.Channel)); no != nil {
			return no
		}
	}
	named, no := judgeKeys(env.Params, resourceKeys, textOnly, f.judgeURI)
	if no == nil && named == 0 {
		no = f.judgeURI("")
	}
	return no
}

// judgeOthers judges files in other methods: reads of content from canvases and MCP
// servers, and subscriptions to file watches.
func (f *fileReach) judgeOthers(env *ahp.Envelope) *refusal {
	switch string(env.Method) {
	case "canvasReadResource", "resources/read":
		m := [...]ahp.Member{{Name: "uri"}}
		if ahp.Spelt(env.Params, m[:]) != nil {
			return unreadable
		}
		uri, ok := ahp.Text(m[0].Raw)
		if !ok && !ahp.IsNone(m[0].Raw) {
			return unreadable
		}
		// An MCP server's resources have schemes of their own, but a canvas's content
		// does not.
		unknown := string(env.Method) == "canvasReadResource" && contentRules[bareScheme(uri)] == byReach && !f.writes
		if unknown || isHosts(uri) {
			return f.judgeURI(uri)
		}
	case "subscribe":
		return f.judgeChannel(string(env.Channel))
	case "initialize", "reconnect":
		list, no := subscriptionsOf(env)
		for _, channel := range list {
			if no == nil {
				no = f.judgeChannel(channel)
			}
		}
		return no
	}
	return nil
}

// watchScheme is the scheme of file watches' channels. The channel's path contains the
// watched URI, and some hosts create the watch for any client that subscribes.
const watchScheme = "ahp-resource-watch"

// judgeChannel refuses a channel that is a file, or a watch on files, if these are out of
// reach. With limited channels, reach has judged the channel before.
func (f *fileReach) judgeChannel(channel string) *refusal {
	switch {
	case f.limited:
		return nil
	case isHosts(channel):
		return f.judgeURI(channel)
	case bareScheme(channel) == watchScheme:
		return f.judgeWatch(channel)
	}
	return nil
}

// judgeWatch refuses a watch on files out of reach. The whole path must be the watch's name,
// because hosts decode different parts of other channels.
func (f *fileReach) judgeWatch(channel string) *refusal {
	plain, err := canonical(channel)
	if err != nil || strings.ContainsAny(plain, "?#") {
		return notFor(channel, errOut)
	}
	_, path, _ := cutAuthority(plain[len(watchScheme)+1:])
	watch, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(path, "/"))
	if err != nil {
		return notFor(channel, errOut)
	}
	named, no := judgeKeys(watch, resourceKeys, textOnly, f.judgeURI)
	if no == nil && named == 0 {
		no = notFor(channel, errOut)
	}
	return no
}

func (f *fileReach) judgeURI(uri string) *refusal { return notFor(uri, f.objection(uri)) }

// objection returns the reason why a URI in a resource method is out of reach, by the
// rule for its scheme.
func (f *fileReach) objection(uri string) error {
	if uri == "" || len(uri) > maxURI {
		return errOut
	}
	rule := contentRules[bareScheme(uri)]
	switch {
	case rule == byFile:
		return f.fileObjection(uri)
	case rule == byName, rule == byRevision:
		return f.namedObjection(uri, rule == byRevision)
	case rule == operateOnly && !f.writes:
		return errOut
	case f.reach != nil:
		if err := f.reach.contentObjection(uri); err != nil || f.limited {
			return err
		}
	}
	plain, err := canonical(uri)
	if err != nil {
		return err
	}
	if rule == byCanvas || len(f.view.Host().ContentOf(uri)) > 0 || above(plain, f.view.Subscribed) || !slices.ContainsFunc(f.rules, func(r fileRule) bool { return !r.takes(plain) }) {
		return nil
	}
	return errOut
}

// namedObjection returns the reason why a client may not read a version of a file that a
// session keeps. The host must have named the URI on this connection, and the session
// must be in reach. If the URI names a revision, the file itself must be in reach too,
// because the host reads it from the repository, which has more files than the session.
func (f *fileReach) namedObjection(uri string, revision bool) error {
	session, path, ok := keptBy(uri)
	switch {
	case !ok || !f.mentions.text(uri):
		return errUnnamed
	case f.reach != nil && session != "" && !f.reach.allows(session):
		return errOut
	case revision && !f.writes:
		return f.fileObjection(fileScheme + "://" + path)
	}
	return nil
}

var errUnnamed = errors.New("the host has not named it on this connection")

// fileObjection returns the reason why a file is out of reach: a rule does not match the
// file or, if symbolic links are followed, does not match its target.
func (f *fileReach) fileObjection(uri string) error {
	plain, err := canonical(uri)
	if err != nil {
		return err
	}
	for i := range f.rules {
		rule := &f.rules[i]
		var folders []string
		if rule.folders {
			folders = slices.Collect(maps.Keys(f.folders))
		}
		if !rule.takes(plain) && !above(plain, func(u string) bool { return slices.Contains(folders, u) }) {
			return errOut
		}
		if f.shared {
			if err := leadsInside(plain, rule.canonical, folders); err != nil {
				return err
			}
		}
	}
	return nil
}

// keptBy parses the URI of a version of a file that a session keeps. It returns the
// session, and the file's path if the URI has one. It does not check the spelling
// further, because the URI is compared byte for byte with those that the host has named.
func keptBy(uri string) (session, path string, ok bool) {
	before, query, _ := strings.Cut(uri, "?")
	if _, err := canonical(before); err != nil {
		return "", "", false
	}
	_, path, _ = strings.Cut(before, ":")
	if query == "" { // the authority names the session in the host's own way
		return "", path, true
	}
	m := [...]ahp.Member{{Name: "sessionUri"}}
	if ahp.Spelt([]byte(unescapePercent(query)), m[:]) != nil {
		return "", "", false
	}
	session, ok = ahp.Text(m[0].Raw)
	return session, path, ok
}

// learn records the working directories of sessions in reach, from the host's session
// lists, states, and added sessions.
func (f *fileReach) learn(reading *view.Reading) {
	if reading == nil {
		return
	}
	for i := range reading.Facts {
		fact := &reading.Facts[i]
		if fact.Thing == view.Folder && isFile(fact.URI) && fact.Of != ahp.RootChannel && (f.reach == nil || f.reach.allows(fact.Of)) {
			f.learnFolder(strings.TrimSuffix(fact.URI, "/"))
		}
	}
}

func (f *fileReach) learnFolder(uri string) {
	if plain, err := canonical(uri); err == nil && len(uri) <= maxURI && len(f.folders) < maxFolders {
		f.folders[plain] = true
	}
}
