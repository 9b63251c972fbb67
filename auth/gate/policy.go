package gate

import (
	"crypto/sha256"
	"encoding/json"
	"slices"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
)

// A Policy is a client's authority on a connection. The zero Policy permits nothing.
// [Policy.Narrow] combines two policies.
type Policy struct {
	Access  auth.Access
	Reverse bool // see [auth.Client]; below operate, the client may answer the host's requests to read its files

	// Lists of patterns. A channel or method must match every list. Without lists,
	// everything matches.
	Channels, Methods [][]string

	Hidden []string // channels that are hidden from the client, with everything that belongs to them

	files []fileRule // every rule must permit a file; no rules: all files are in reach

	// SharedFiles means that the host's files are on this machine, so that the gate
	// follows symbolic links before it judges a file.
	SharedFiles bool
}

// NewPolicy returns the policy for a token, or for the flags of a host-agent. Empty channels
// or methods mean all. For reverse see [Policy]. The caller must have checked the patterns
// with [auth.CheckPatterns]. If channels are limited or access is below the level operate,
// only files that the channels name can be reached.
func NewPolicy(access auth.Access, channels, methods []string, reverse bool) Policy {
	p := Policy{Access: access, Reverse: reverse, Channels: lists(channels), Methods: lists(methods)}
	if !p.Full() && (!p.Writes() || len(p.Channels) > 0) {
		p.files = []fileRule{newFileRule(channels, p.Writes())}
	}
	return p
}

// WithFolders returns the policy with the working directories of visible sessions added to
// its files. If all files are in reach, nothing changes.
func (p Policy) WithFolders() Policy {
	p.files = slices.Clone(p.files)
	for i := range p.files {
		p.files[i].folders = true
	}
	return p
}

// lists returns a pattern list, or nil if it matches everything.
func lists(patterns []string) [][]string {
	if len(patterns) == 0 || slices.Contains(patterns, auth.All) {
		return nil
	}
	return [][]string{patterns}
}

// Narrow returns the policy that permits a message only if both policies permit it.
func (p Policy) Narrow(q Policy) Policy {
	p.Access = p.Access.Less(q.Access)
	p.Reverse = p.Reverse && q.Reverse
	p.Channels = slices.Concat(p.Channels, q.Channels)
	p.Methods = slices.Concat(p.Methods, q.Methods)
	p.Hidden = slices.Concat(p.Hidden, q.Hidden)
	p.files = slices.Concat(p.files, q.files)
	return p
}

// Writes reports whether the policy has the level operate.
func (p Policy) Writes() bool { return p.Access.Includes(auth.AccessWrite) }

// Speaks reports whether the policy has the level talk.
func (p Policy) Speaks() bool { return p.Access.Includes(auth.AccessTalk) }

// Canvas reports whether the client may look at canvas pages, and use them. The same
// permissions apply as over AHP: for reading canvas content, and for acting on canvas
// channels.
func (p Policy) Canvas() (look, use bool) {
	look = p.Access.Includes(auth.AccessRead) && p.allowsMethod("canvasReadResource")
	return look, look && p.Writes() && p.allowsMethod("dispatchAction")
}

// SeesAll reports whether the policy permits all sessions of the host.
func (p Policy) SeesAll() bool {
	return len(p.Channels) == 0 && len(p.Hidden) == 0 && p.Access.Includes(auth.AccessRead) && p.allowsMethod("listSessions") && p.allowsMethod("subscribe")
}

// Sees reports whether the policy permits a session.
func (p Policy) Sees(session string) bool {
	return session != "" && p.Access.Includes(auth.AccessRead) && p.Takes(session, "subscribe")
}

// Previews reports whether the client may open ports on the host's machine as pages. This
// needs the same authority as raw connections.
func (p Policy) Previews() bool {
	return p.Writes() && p.Takes(ahp.TCPScheme+"/preview", "createTcpConnection")
}

// Class returns a digest of the rules for messages to the client. Clients with the same
// class receive the same messages on a channel.
func (p Policy) Class() string {
	type files struct {
		Channels []string
		Folders  bool
	}
	var reach []files
	for _, f := range p.files {
		reach = append(reach, files{f.given, f.folders})
	}
	rules, _ := json.Marshal([]any{p.Access, p.Reverse, p.Channels, p.Methods, slices.Sorted(slices.Values(p.Hidden)), reach}) // never fails
	sum := sha256.Sum256(rules)
	return string(sum[:])
}

// Full reports whether the policy permits everything, and so needs no gate.
func (p Policy) Full() bool {
	return p.Writes() && len(p.Channels) == 0 && len(p.Methods) == 0 && len(p.Hidden) == 0
}

// Gate returns the gate that enforces the policy on a connection, or nil if the policy is
// full.
func (p Policy) Gate(v *view.Conn) Gate {
	if p.Full() {
		return nil
	}
	return newAuthority(p, v)
}

// Takes reports whether the policy's lists match a channel and a method, and the channel
// is not hidden.
func (p Policy) Takes(channel, method string) bool {
	for _, list := range p.Channels {
		if !auth.MatchesAny(list, channel) {
			return false
		}
	}
	return !slices.Contains(p.Hidden, channel) && p.allowsMethod(method)
}

// Reaches reports whether a channel is in reach at present, by the patterns or because it
// belongs to a channel that matches them.
func (p Policy) Reaches(channel string, host *view.Host) bool {
	return len(p.Channels) == 0 && len(p.Hidden) == 0 || newReach(p.Channels, p.Hidden, host).allows(channel)
}

func (p Policy) allowsMethod(method string) bool {
	for _, list := range p.Methods {
		if !auth.MatchesAny(list, method) {
			return false
		}
	}
	return true
}
