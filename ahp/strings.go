package ahp

// A StringAt is a string of a JSON value, and where it stands.
type StringAt struct {
	Text  []byte // decoded; nil for one with a lone surrogate, which has no text
	Key   []byte // of the member whose value it is, or is in; nil for none, or where IsKey
	Depth int    // of the object or array around it; 1 for members of the outermost
	IsKey bool   // it is a key itself
}

// Strings calls visit with each string of a raw JSON value that is valid, such
// as the Params that [Peek] returned, keys included, in their order, until
// visit returns false. What visit is given is good until it returns.
func Strings(raw []byte, visit func(StringAt) bool) {
	s := scanner{buf: raw}
	var key []byte
	var free, kept []byte // buffers for texts with escapes, and for keys
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end, plain := s.string(i)
			if end == failed {
				return
			}
			text := raw[i+1 : end-1 : end-1]
			if !plain {
				text, _ = appendUnescaped(free[:0], text)
				free = text
			}
			after, c := s.token(end)
			i = after - 1
			at := StringAt{Text: text, Key: key, Depth: depth}
			if c == ':' {
				key = text
				free, kept = kept, free // the key stays
				at.Key, at.IsKey = nil, true
			}
			if !visit(at) {
				return
			}
		}
	}
}
