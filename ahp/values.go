package ahp

// Values calls visit with the decoded key and the raw value of each member in a valid
// raw JSON object, in order, until visit returns false. A key with a lone surrogate
// is nil. Key and value are valid until visit returns.
func Values(object []byte, visit func(key, value []byte) bool) {
	s := scanner{buf: object}
	i, c := s.token(0)
	for c == '{' || c == ',' {
		start, c0 := s.token(i + 1)
		if c0 != '"' {
			return
		}
		end, plain := s.string(start)
		if end == failed {
			return
		}
		key := object[start+1 : end-1]
		if !plain {
			key, _ = unescape(key)
		}
		if end = s.colon(end); end == failed {
			return
		}
		at, _ := s.token(end)
		if i = s.value(at); i == failed || !visit(key, object[at:i:i]) {
			return
		}
		i, c = s.token(i)
	}
}
