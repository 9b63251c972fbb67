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

// A fileRule is which files a token, or a host's owner, allows.
type fileRule struct {
	patternList
	folders bool // also those in the working directories of sessions that may be seen
}

// newFileRule returns the rule of a list of channels. Who may change nothing
// reaches only files that are named: by patterns that say of which scheme they
// are.
func newFileRule(channels []string, writes bool) fileRule {
	if !writes {
		channels = slices.DeleteFunc(slices.Clone(channels), func(p string) bool {
			before, _, _ := strings.Cut(p, "*")
			return !strings.Contains(before, ":")
		})
	}
	return fileRule{patternList: newPatternList(channels)}
}

// takes reports whether the patterns take a canonical URI, or one above it.
func (r *fileRule) takes(uri string) bool { return patternLists{r.patternList}.takeBelow(uri) }

// maxFolders bounds what a connection learns of working directories.
const maxFolders = 1024

// A fileReach is which files, and what else the resource methods serve, a
// client may reach.
type fileReach struct {
	rules  []fileRule
	shared bool   // symbolic links are followed before a file is judged
	reach  *reach // nil: all channels

	writes bool // the client may operate
	told   *told

	view    *view.Conn
	folders map[string]bool // working directories of sessions that may be seen
}

func newFileReach(p Policy, r *reach, v *view.Conn, t *told) *fileReach {
	return &fileReach{rules: p.files, shared: p.SharedFiles, reach: r, writes: p.Writes(), told: t, view: v, folders: map[string]bool{}}
}

// resourceKeys are where the resource methods name URIs.
var resourceKeys = []string{"uri", "source", "destination", "target", "from", "to", "root", "resource"}

// judgeResource wants all URIs of a resource method in reach. They are
// strings: hosts that take objects for URIs read them in ways of their own.
func (f *fileReach) judgeResource(env *ahp.Envelope) *refusal {
	if f.reach != nil && env.Channel != nil && string(env.Channel) != rootChannel {
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

// judgeOthers wants files in reach that other methods name: what is read on a
// channel, and channels that are watches of files.
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
		// The resources of an MCP server have schemes of its own, the content of a canvas has not.
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

// watchScheme begins the channels of watches, which some hosts make anew for
// whoever names one: they say themselves what is watched.
const watchScheme = "ahp-resource-watch:"

// judgeChannel wants a channel that is a file, or a watch of files, in reach.
// Where channels are limited, they have been judged.
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

// objection says why the URI that a resource method names is out of reach: the rule of
// its scheme decides.
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

// namedObjection says why a client may not read the content of a file that a session
// keeps. The host has named that very URI on this connection, and the session is in reach.
// If the URI is of a revision, the files must be allowed too: the host takes it out of a
// repository, which has more than the session.
func (f *fileReach) namedObjection(uri string, revision bool) error {
	session, path, ok := keptBy(uri)
	switch {
	case !ok || !f.told.text(uri):
		return errUnnamed
	case f.reach != nil && session != "" && !f.reach.allows(session):
		return errOut
	case revision && !f.writes:
		return f.fileObjection(fileScheme + "://" + path)
	}
	return nil
}

// errUnnamed reports the content of a file that a client may not read because the host
// has not named it.
var errUnnamed = errors.New("the host has not named it on this connection")

// fileObjection says why a file is out of reach: one of the rules does not
// take it, or where it leads.
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

// keptBy reads the URI of a file's content that a session keeps, and returns the session
// and the file's path, if the URI has them. The URI is compared byte for byte with those
// that the host has named, so that its spelling needs no further check.
func keptBy(uri string) (session, path string, ok bool) {
	before, query, _ := strings.Cut(uri, "?")
	if _, err := canonical(before); err != nil {
		return "", "", false
	}
	_, path, _ = strings.Cut(before, ":")
	if query == "" { // the authority names the session in a way of the host's own
		return "", path, true
	}
	m := [...]ahp.Member{{Name: "sessionUri"}}
	if ahp.Spelt([]byte(unescapePercent(query)), m[:]) != nil {
		return "", "", false
	}
	session, ok = ahp.Text(m[0].Raw)
	return session, path, ok
}

// learn learns the working directories of sessions in reach from what the host
// says to the client: lists of sessions, their state, and that one was added.
func (f *fileReach) learn(said *view.Reading) {
	if said == nil {
		return
	}
	for i := range said.Facts {
		fact := &said.Facts[i]
		if fact.What == view.Folder && isFile(fact.URI) && fact.Of != rootChannel && (f.reach == nil || f.reach.allows(fact.Of)) {
			f.learnFolder(strings.TrimSuffix(fact.URI, "/"))
		}
	}
}

func (f *fileReach) learnFolder(uri string) {
	if plain, err := canonical(uri); err == nil && len(uri) <= maxURI && len(f.folders) < maxFolders {
		f.folders[plain] = true
	}
}
