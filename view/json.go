package view

import "ahprelay/ahp"

// member returns a member of a raw object that has it.
func member(object []byte, name string) (ahp.Member, bool) {
	if object == nil {
		return ahp.Member{}, false
	}
	m := [...]ahp.Member{{Name: name}}
	err := ahp.Members(object, m[:])
	return m[0], err == nil && m[0].Raw != nil
}

// text returns a member of a raw object that is a string, or "".
func text(object []byte, name string) string {
	m, _ := member(object, name)
	s, _ := ahp.Text(m.Raw)
	return s
}

// elements returns the elements of a raw array, none for anything else.
func elements(raw []byte) []ahp.Member {
	if raw == nil {
		return nil
	}
	list, _ := ahp.Elements(raw)
	return list
}

func isObject(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }

// isNone reports whether a member is absent, or null.
func isNone(raw []byte) bool { return raw == nil || string(raw) == "null" }
