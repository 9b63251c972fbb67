package hostagent

import (
	"net/http"
	"strings"
)

// readOnlyHeaders are the only headers accepted in a request at level look. An
// application's own header can turn a GET into a change, as X-HTTP-Method-Override,
// X-HTTP-Method and X-Method-Override do in many frameworks. The query is not judged:
// it is part of the address, and frameworks that read _method there do so for POST,
// which is refused.
var readOnlyHeaders = map[string]bool{
	"Accept": true, "Accept-Charset": true, "Accept-Encoding": true, "Accept-Language": true, "Authorization": true,
	"Cache-Control": true, "Connection": true, "Cookie": true, "Date": true, "Dnt": true, "If-Match": true, "If-Modified-Since": true,
	"If-None-Match": true, "If-Range": true, "If-Unmodified-Since": true, "Last-Event-Id": true, "Origin": true, "Pragma": true,
	"Priority": true, "Purpose": true, "Range": true, "Referer": true, "Save-Data": true, "Te": true, "Upgrade": true,
	"Upgrade-Insecure-Requests": true, "User-Agent": true, "X-Requested-With": true,
}

// keepReadOnlyHeaders removes all headers that a viewer at level look may not send.
// Headers with the prefix Sec- pass, because only the browser can set them.
func keepReadOnlyHeaders(h http.Header) {
	for name := range h {
		if !readOnlyHeaders[name] && !strings.HasPrefix(name, "Sec-") {
			delete(h, name)
		}
	}
}
