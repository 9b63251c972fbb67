package ahp

import (
	"strconv"
	"unicode/utf8"
)

// AppendResult appends to dst the JSON-RPC response to the request with this raw id
// (JSON-RPC 2.0, section 5). The id is written verbatim, like the raw JSON result. A
// nil result is null, the answer to ping.
func AppendResult(dst, id, result []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = appendRaw(dst, id)
	dst = append(dst, `,"result":`...)
	dst = appendRaw(dst, result)
	return append(dst, '}')
}

// AppendError appends to dst the JSON-RPC error response to the request with this raw
// id (JSON-RPC 2.0, sections 5 and 5.1). The id is written verbatim; a nil id is null,
// for requests without a readable id. Data is raw JSON, and omitted if nil.
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

// AppendChannel adds a channel at the top level to a message from [AppendResult] or
// [AppendError], as mcp:// channels require.
func AppendChannel(message, channel []byte) []byte {
	message = append(message[:len(message)-1], `,"channel":`...)
	return append(appendText(message, string(channel)), '}')
}
