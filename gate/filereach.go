package gate

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/view"
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

	view    *view.Conn
	folders map[string]bool // working directories of sessions that may be seen
}

func newFileReach(p Policy, r *reach, v *view.Conn) *fileReach {
	return &fileReach{rules: p.files, shared: p.SharedFiles, reach: r, view: v, folders: map[string]bool{}}
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
		if uri, _ := ahp.Text(m[0].Raw); isFile(uri) {
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
	case isFile(channel):
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

// objection says why what a resource method names is out of reach.
func (f *fileReach) objection(uri string) error {
	if uri == "" || len(uri) > maxURI {
		return errOut
	}
	if isFile(uri) {
		return f.fileObjection(uri)
	}
	if isSessions(uri) {
		if session, ok := sessionOf(uri); ok && (f.reach == nil || f.reach.allows(session)) {
			return nil
		}
		return errOut // whatever somebody is subscribed to: hosts make commands of it
	}
	if f.reach != nil {
		return f.reach.contentObjection(uri)
	}
	plain, err := canonical(uri)
	if err != nil {
		return err
	}
	if strings.HasPrefix(plain, "ahp-") || above(plain, f.view.Subscribed) || !slices.ContainsFunc(f.rules, func(r fileRule) bool { return !r.takes(plain) }) {
		return nil
	}
	return errOut
}

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

// Schemes of what VS Code's host keeps of a session: files as they were before
// and after an edit, and in the session's repository. Which session and what of
// it stands in the query, as JSON.
const (
	editScheme = "session-db"
	blobScheme = "git-blob"
)

// isSessions reports whether a URI is of what is kept of a session, however
// carelessly its scheme is written.
func isSessions(uri string) bool {
	scheme := bareScheme(uri)
	return scheme == editScheme || scheme == blobScheme
}

// sessionOf returns whose content a URI of those is; ok is false if that is not
// clear.
func sessionOf(uri string) (session string, ok bool) {
	before, query, _ := strings.Cut(uri, "?")
	if _, err := canonical(before); err != nil || strings.Contains(query, "#") || checkText(query) != nil {
		return "", false
	}
	m := [...]ahp.Member{{Name: "sessionUri"}, {Name: "sha"}}
	if ahp.Spelt([]byte(unescapePercent(query)), m[:]) != nil {
		return "", false
	}
	session, ok = ahp.Text(m[0].Raw)
	sha, _ := ahp.Text(m[1].Raw)
	return session, ok && !strings.HasPrefix(sha, "-") // which git takes for an option
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
