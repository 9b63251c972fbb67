package contentproxy

import "ahprelay/ahp"

// withContent marks the largest content in a response to a read: result.contents[].text or .blob,
// or result.data.
func withContent(message []byte) Message {
	out := Message{Bytes: message}
	result, ok := ahp.MemberOf(message, "result")
	if !ok {
		return out
	}
	m := [...]ahp.Member{{Name: "contents"}, {Name: "data"}}
	if ahp.Members(result.Raw, m[:]) != nil {
		return out
	}
	out.take(&m[1], result.Offset())
	each(&m[0], result.Offset(), func(raw []byte, at int) {
		m := [...]ahp.Member{{Name: "text"}, {Name: "blob"}}
		if ahp.Members(raw, m[:]) == nil {
			out.take(&m[0], at)
			out.take(&m[1], at)
		}
	})
	return out
}

// take marks a member as the message's content if it is longer than the content marked so far. at
// is the offset of the member's object in the message.
func (m *Message) take(content *ahp.Member, at int) {
	if len(content.Raw) > m.To-m.From {
		m.From = at + content.Offset()
		m.To = m.From + len(content.Raw)
	}
}
