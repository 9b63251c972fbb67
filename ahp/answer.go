package ahp

import (
	"strconv"
	"unicode/utf8"
)

// AppendResult appends to dst the JSON-RPC response that answers the request
// with this raw id (JSON-RPC 2.0, section 5). The id goes in verbatim, as does
// the raw JSON result; a nil result is null, which is what ping is answered.
func AppendResult(dst, id, result []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = appendRaw(dst, id)
	dst = append(dst, `,"result":`...)
	dst = appendRaw(dst, result)
	return append(dst, '}')
}

// AppendError appends to dst the JSON-RPC error response that answers the
// request with this raw id (JSON-RPC 2.0, sections 5 and 5.1). The id goes in
// verbatim; a nil id is null, which answers what had no readable id. Data is
// raw JSON, and left out when nil.
func AppendError(dst, id []byte, code int, message string, data []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = appendRaw(dst, id)
	dst = append(dst, `,"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(code), 10)
	dst = append(dst, `,"message":`...)
	dst = appendText(dst, message)
	if data != nil {
		dst = append(dst, `,"data":`...)
		dst = append(dst, data...)
	}
	return append(dst, "}}"...)
}

// appendRaw appends raw JSON, or null for none.
func appendRaw(dst, raw []byte) []byte {
	if raw == nil {
		return append(dst, "null"...)
	}
	return append(dst, raw...)
}

// appendText appends text as a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendText(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for _, r := range text {
		switch {
		case r == '"', r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			const digits = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// AppendChannel returns a message of [AppendResult] or [AppendError] with a
// channel at its top level, as messages on mcp:// channels have it.
func AppendChannel(message, channel []byte) []byte {
	message = append(message[:len(message)-1], `,"channel":`...)
	return append(appendText(message, string(channel)), '}')
}
