package auth

// Access is what a client may do at the hosts that it may reach: one of the
// levels below, each of which includes those before it. Package gate says what
// each allows; auth/gate/testdata/matrix.txt is the table.
type Access string

// The levels of access, as tokens and the wire have them. Three of them had other
// names first, which [Access.Level] replaces and [Access.UnmarshalText] still reads.
const (
	AccessRead    Access = "read"    // look: at sessions and chats; no files but those that are named
	AccessTalk    Access = "talk"    // and say something to agents, and answer their questions
	AccessApprove Access = "approve" // and say whether they may do what they ask for
	AccessWrite   Access = "write"   // operate: everything at the host
	AccessAdmin   Access = "admin"   // own: and share it, and see to others' connections
)

// levels are the levels in their order, and their names for people.
var levels = []struct {
	access Access
	name   string
}{
	{AccessRead, "look"}, {AccessTalk, "talk"}, {AccessApprove, "approve"}, {AccessWrite, "operate"}, {AccessAdmin, "own"},
}

// rank is the place of a level in the order, -1 for what is none.
func (a Access) rank() int {
	for i, l := range levels {
		if l.access == a {
			return i
		}
	}
	return -1
}

// Includes reports whether who has the level may do what another allows. What is
// no level includes nothing.
func (a Access) Includes(b Access) bool { return a.rank() >= 0 && a.rank() >= b.rank() }

// Less returns the lower of two levels.
func (a Access) Less(b Access) Access {
	if b.rank() < a.rank() {
		return b
	}
	return a
}

// Level is the level's name: look, talk, approve, operate or own.
func (a Access) Level() string {
	if i := a.rank(); i >= 0 {
		return levels[i].name
	}
	return string(a)
}

// UnmarshalText reads a level by either of its names. What is none is kept as it
// is: whoever reads it says so.
func (a *Access) UnmarshalText(text []byte) error {
	*a = Access(text)
	for _, l := range levels {
		if l.name == string(text) {
			*a = l.access
		}
	}
	return nil
}

// Levels returns all levels, the lowest first.
func Levels() (list []Access) {
	for _, l := range levels {
		list = append(list, l.access)
	}
	return list
}
