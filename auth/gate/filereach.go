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

// A fileRule is the set of files a token, or a host's owner, allows.
type fileRule struct {
	patternList
	folders bool // also the files in the working directories of visible sessions
}

// newFileRule returns the rule for a channel list. A client below operate reaches only
// named files: those in patterns that include a scheme.
func newFileRule(channels []string, writes bool) fileRule {
	if !writes {
		channels = slices.DeleteFunc(slices.Clone(channels), func(p string) bool {
			before, _, _ := strings.Cut(p, "*")
			return !strings.Contains(before, ":")
		})
	}
	return fileRule{patternList: newPatternList(channels)}
}

// takes reports whether the patterns match a canonical URI, or a URI above it.
func (r *fileRule) takes(uri string) bool { return patternLists{r.patternList}.takeBelow(uri) }

// maxFolders bounds the working directories kept for a connection.
const maxFolders = 1024

// A fileReach holds the files, and the resource methods' other content, that a client
// may reach.
type fileReach struct {
	rules  []fileRule
	shared bool   // symbolic links are followed before a file is judged
	reach  *reach // nil: all channels

	writes   bool // the client may operate
	mentions *mentions

	view    *view.Conn
	folders map[string]bool // working directories of visible sessions
}

func newFileReach(p Policy, r *reach, v *view.Conn, t *mentions) *fileReach {
	return &fileReach{rules: p.files, shared: p.SharedFiles, reach: r, writes: p.Writes(), mentions: t, view: v, folders: map[string]bool{}}
}

// resourceKeys are the members in which the resource methods name URIs.
var resourceKeys = []string{"uri", "source", "destination", "target", "from", "to", "root", "resource"}

// judgeResource requires a resource method's URIs to be in reach. They must be
// strings, because hosts that accept objects read them in different ways.
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

// judgeOthers judges the files in methods that do not access resources: the content of
// canvases and MCP servers, and file watches, to which clients subscribe.
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
		// An MCP server's resources have its own schemes. A canvas's content does not.
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

// watchScheme begins watches' channels. A channel's name contains the watched URI, and
// some hosts create the watch for any client that names it.
const watchScheme = "ahp-resource-watch:"

// judgeChannel requires a channel that is a file, or a watch of files, to be in reach.
// Limited channels have been judged before.
func (f *fileReach) judgeChannel(channel string) *refusal {
	switch {
	case f.reach != nil:
		return nil
	case isHosts(channel):
		return f.judgeURI(channel)
	case len(channel) >= len(watchScheme) && strings.EqualFold(channel[:len(watchScheme)], watchScheme):
		name := channel[strings.LastIndexByte(channel, '/')+1:]
		watch, err := base64.RawURLEncoding.DecodeString(name)
		if err != nil {
			return notFor(channel, errOut)
		}
		named, no := judgeKeys(watch, resourceKeys, textOnly, f.judgeURI)
		if no == nil && named == 0 {
			no = notFor(channel, errOut)
		}
		return no
	}
	return nil
}

func (f *fileReach) judgeURI(uri string) *refusal { return notFor(uri, f.objection(uri)) }

// objection returns why the URI in a resource method is unreachable, by its scheme's
// rule.
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
	case f.reach != nil && (rule != operateOnly || f.writes):
		return f.reach.contentObjection(uri)
	case rule == operateOnly:
		return errOut
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

// namedObjection returns why a client may not read a file's content a session keeps.
// The host must have named this URI on this connection, and the session must be in
// reach. For a revision's URI, the file must be in reach too: the host reads it from a
// repository, which has more files than the session.
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

// errUnnamed reports file content that is unreadable because the host has not named
// it.
var errUnnamed = errors.New("the host has not named it on this connection")

// fileObjection returns why a file is unreachable: a rule does not match the file or
// its target.
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

// keptBy parses the URI of file content a session keeps, and returns the session and
// the file's path, if present. The URI is compared byte for byte with the URIs the
// host has named, so its spelling needs no further check.
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

// learn records reachable sessions' working directories from the host's messages:
// session lists, states, and added sessions.
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
