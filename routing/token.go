package routing

import (
	"crypto/sha256"
	"encoding/hex"
)

// maxToken bounds a token in bytes. NATS subjects thus stay far below 4 KiB, the limit
// for a NATS control line.
const maxToken = 160

// hashMark precedes the hash in a shortened token. No escape looks like it, because
// "_" is no hexadecimal digit.
const hashMark = "=_"

// ChannelToken encodes a channel URI as one NATS token. Letters, digits and most
// punctuation are unchanged. Dots, wildcards, quotes, backslashes, "=", spaces, control
// characters and non-ASCII bytes are written as "=" and two hexadecimal digits. If the
// token would exceed 160 bytes, its tail is replaced by "=_" and the SHA-256 of the
// complete URI. Different URIs have different tokens.
func ChannelToken(uri string) string {
	clean := uri != "" && len(uri) <= maxToken
	for i := 0; clean && i < len(uri); i++ {
		clean = plain[uri[i]]
	}
	if clean {
		return uri
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, min(3*len(uri), maxToken)+3)
	for i := 0; i < len(uri) && len(b) <= maxToken; i++ {
		if c := uri[i]; plain[c] {
			b = append(b, c)
		} else {
			b = append(b, '=', digits[c>>4], digits[c&15])
		}
	}
	if uri == "" {
		return hashMark
	}
	if len(b) <= maxToken {
		return string(b)
	}
	sum := sha256.Sum256([]byte(uri))
	return cutToken(b) + hashMark + hex.EncodeToString(sum[:])
}

// validToken reports whether ChannelToken may have returned token.
func validToken(token string) bool {
	for i := range len(token) {
		if !plain[token[i]] && token[i] != '=' {
			return false
		}
	}
	return token != "" && len(token) <= maxToken
}

// cutToken shortens an escaped token to leave room for a hash. It does not cut within
// an escape.
func cutToken(b []byte) string {
	const keep = maxToken - len(hashMark) - 2*sha256.Size
	b = b[:keep]
	for i := max(0, len(b)-2); i < len(b); i++ {
		if b[i] == '=' {
			b = b[:i]
		}
	}
	return string(b)
}

// plain marks the bytes that need no escape.
var plain = func() (t [256]bool) {
	for c := byte('!'); c <= '~'; c++ {
		t[c] = true
	}
	for _, c := range []byte(`.*>=\"'` + "`") {
		t[c] = false
	}
	return t
}()
