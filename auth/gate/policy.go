package gate

import (
	"slices"

	"ahprelay/ahp/view"
	"ahprelay/auth"
)

// A Policy says what a client may do on a connection. The zero Policy lets it
// do nothing. [Policy.Narrow] makes one of two.
type Policy struct {
	Access  auth.Access
	Reverse bool // a client that only reads may answer when the host asks for its files

	// Lists of patterns: a channel, or a method, must be taken by each list.
	// None: all are.
	Channels, Methods [][]string

	files []fileRule // each must allow a file; none: all may be reached

	// SharedFiles says that the host's files are those of this machine:
	// symbolic links are followed before a file is judged.
	SharedFiles bool
}

// NewPolicy returns the policy of a token, or of flags. No channels or no
// methods mean all. The patterns must be checked ([auth.CheckPatterns]). Files
// are those that channels name, and, if only some do or nothing may be changed,
// no others.
func NewPolicy(access auth.Access, channels, methods []string, reverse bool) Policy {
	p := Policy{Access: access, Reverse: reverse, Channels: lists(channels), Methods: lists(methods)}
	if !p.Full() && (!p.Writes() || len(p.Channels) > 0) {
		p.files = []fileRule{newFileRule(channels, p.Writes())}
	}
	return p
}

// WithFolders returns the policy that also allows the files in the working
// directories of the sessions that may be seen, where it allows some only.
func (p Policy) WithFolders() Policy {
	p.files = slices.Clone(p.files)
	for i := range p.files {
		p.files[i].folders = true
	}
	return p
}

// lists returns the list, unless it takes everything.
func lists(patterns []string) [][]string {
	if len(patterns) == 0 || slices.Contains(patterns, auth.All) {
		return nil
	}
	return [][]string{patterns}
}

// Narrow returns the policy that allows what both allow.
func (p Policy) Narrow(q Policy) Policy {
	p.Access = p.Access.Less(q.Access)
	p.Reverse = p.Reverse && q.Reverse
	p.Channels = slices.Concat(p.Channels, q.Channels)
	p.Methods = slices.Concat(p.Methods, q.Methods)
	p.files = slices.Concat(p.files, q.files)
	return p
}

// Writes reports whether the policy allows everything that access is about.
func (p Policy) Writes() bool { return p.Access.Includes(auth.AccessWrite) }

// Speaks reports whether the policy allows to have an agent do something.
func (p Policy) Speaks() bool { return p.Access.Includes(auth.AccessTalk) }

// Canvas reports whether the policy allows to look at the pages of canvases, and
// to use them: who may not read their content, or not act on their channels, may
// not do so over HTTP either.
func (p Policy) Canvas() (look, use bool) {
	look = p.Access.Includes(auth.AccessRead) && p.allowsMethod("canvasReadResource")
	return look, look && p.Writes() && p.allowsMethod("dispatchAction")
}

// Previews reports whether the policy allows to open ports of the host's machine as
// pages: that is no less than to open raw connections there.
func (p Policy) Previews() bool {
	return p.Writes() && p.Takes(tcpScheme+"/preview", "createTcpConnection")
}

// Full reports whether the policy allows everything: then no gate is needed.
func (p Policy) Full() bool { return p.Writes() && len(p.Channels) == 0 && len(p.Methods) == 0 }

// Gate returns the gate that sees to the policy on one connection, nil if it
// is full. It decides by what the host has said, as the view has it.
func (p Policy) Gate(v *view.Conn) Gate {
	if p.Full() {
		return nil
	}
	return newAuthority(p, v)
}

// Takes reports whether the policy's lists take a channel and a method.
func (p Policy) Takes(channel, method string) bool {
	for _, list := range p.Channels {
		if !auth.MatchesAny(list, channel) {
			return false
		}
	}
	return p.allowsMethod(method)
}

// allowsMethod reports whether the lists of methods take one.
func (p Policy) allowsMethod(method string) bool {
	for _, list := range p.Methods {
		if !auth.MatchesAny(list, method) {
			return false
		}
	}
	return true
}
