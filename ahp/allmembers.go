package ahp

import "strconv"

// AllMembers returns a raw JSON object's members in order. Like [Members], it refuses an
// invalid object. It also refuses every duplicate key.
func AllMembers(object []byte) ([]Member, error) {
	s := scanner{buf: object}
	list, err := s.members()
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (s *scanner) members() (list []Member, _ *FrameError) {
	i, c := s.token(0)
	if c != '{' {
		s.fail(i, "not a JSON object")
		return nil, s.err
	}
	s.open(i)
	names := map[string]bool{}
	i, c = s.token(i + 1)
	for c != '}' {
		var m Member
		if i = s.member(i, &m); i == failed {
			return nil, s.err
		}
		if names[m.Name] {
			s.fail(m.offset, strconv.Quote(m.Name)+" given twice")
			return nil, s.err
		}
		names[m.Name] = true
		list = append(list, m)
		switch i, c = s.token(i); c {
		case ',':
			i++
		case '}':
		default:
			s.unexpected(i)
			return nil, s.err
		}
	}
	if i, _ = s.token(i + 1); i < len(s.buf) {
		s.fail(i, "bytes after the object")
	}
	return list, s.err
}

func (s *scanner) member(i int, m *Member) int {
	start, _ := s.token(i)
	if i, _ = s.name(i, nil); i == failed {
		return failed
	}
	key, _ := s.string(start)
	name, _ := decode(s.buf[start:key]) // never fails: the key is valid
	m.Name = string(name)
	at, _ := s.token(i)
	if i = s.value(at); i == failed {
		return failed
	}
	m.Raw, m.offset = s.buf[at:i:i], at
	return i
}
