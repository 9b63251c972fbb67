package hostagent

import (
	"net/http"
	"strings"
)

// Requests of viewers who may only look carry these headers, and no others: a header that an application
// defines itself can turn a GET into a change, as X-HTTP-Method-Override, X-HTTP-Method and X-Method-Override do in
// many frameworks. The query is not judged: it is part of the address, and frameworks that read _method there do so
// for POST, which does not pass.
var lookHeaders = map[string]bool{
	"Accept": true, "Accept-Charset": true, "Accept-Encoding": true, "Accept-Language": true, "Authorization": true,
	"Cache-Control": true, "Connection": true, "Cookie": true, "Date": true, "Dnt": true, "If-Match": true, "If-Modified-Since": true,
	"If-None-Match": true, "If-Range": true, "If-Unmodified-Since": true, "Last-Event-Id": true, "Origin": true, "Pragma": true,
	"Priority": true, "Purpose": true, "Range": true, "Referer": true, "Save-Data": true, "Te": true, "Upgrade": true,
	"Upgrade-Insecure-Requests": true, "User-Agent": true, "X-Requested-With": true,
}

// onlyLookHeaders removes the headers that a viewer who may only look does not send. Those that begin with Sec- pass: only
// the browser itself sets them.
func onlyLookHeaders(h http.Header) {
	for name := range h {
		if !lookHeaders[name] && !strings.HasPrefix(name, "Sec-") {
			delete(h, name)
		}
	}
}
