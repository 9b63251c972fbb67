package auth

// Access is a client's level of authority at its hosts. Each level includes the lower
// levels. Package gate defines their meaning; auth/gate/testdata/matrix.txt is the
// complete table.
type Access string

// The levels, as in tokens and on the wire. Three have new names, which [Access.Level]
// returns and [Access.UnmarshalText] also accepts.
const (
	AccessRead    Access = "read"    // look: see sessions and chats, and the files that the token permits
	AccessTalk    Access = "talk"    // also send messages to agents, and answer their questions
	AccessApprove Access = "approve" // also approve tool calls
	AccessWrite   Access = "write"   // operate: everything at the host
	AccessAdmin   Access = "admin"   // own: also share the host, and manage people and devices
)

// levels are the levels, lowest first, with their current names.
var levels = []struct {
	access Access
	name   string
}{
	{AccessRead, "look"}, {AccessTalk, "talk"}, {AccessApprove, "approve"}, {AccessWrite, "operate"}, {AccessAdmin, "own"},
}

// rank returns a level's index in levels, or -1 for an unknown level.
func (a Access) rank() int {
	for i, l := range levels {
		if l.access == a {
			return i
		}
	}
	return -1
}

// Includes reports whether level a permits everything that level b permits. An unknown
// level includes nothing.
func (a Access) Includes(b Access) bool { return a.rank() >= 0 && a.rank() >= b.rank() }

// Less returns the lower of two levels.
func (a Access) Less(b Access) Access {
	if b.rank() < a.rank() {
		return b
	}
	return a
}

// Level returns the level's name: look, talk, approve, operate or own.
func (a Access) Level() string {
	if i := a.rank(); i >= 0 {
		return levels[i].name
	}
	return string(a)
}

// UnmarshalText reads either name of a level. It keeps unknown text for later checks
// to report.
func (a *Access) UnmarshalText(text []byte) error {
	*a = Access(text)
	for _, l := range levels {
		if l.name == string(text) {
			*a = l.access
		}
	}
	return nil
}

// Levels returns all levels, lowest first.
func Levels() (list []Access) {
	for _, l := range levels {
		list = append(list, l.access)
	}
	return list
}
