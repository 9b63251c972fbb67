package hostagent

// readOnlyHeaders lists the headers that a request at level look may have. Other
// headers are removed, because some applications let a header turn a GET into a
// change: X-HTTP-Method-Override, X-HTTP-Method and X-Method-Override are common.
// Queries pass unchanged: frameworks that read _method from the query do so for POST
// only, which is refused.
var readOnlyHeaders = map[string]bool{
	"Accept": true, "Accept-Charset": true, "Accept-Encoding": true, "Accept-Language": true, "Authorization": true,
	"Cache-Control": true, "Connection": true, "Cookie": true, "Date": true, "Dnt": true, "If-Match": true, "If-Modified-Since": true,
	"If-None-Match": true, "If-Range": true, "If-Unmodified-Since": true, "Last-Event-Id": true, "Origin": true, "Pragma": true,
	"Priority": true, "Purpose": true, "Range": true, "Referer": true, "Save-Data": true, "Te": true, "Upgrade": true,
	"Upgrade-Insecure-Requests": true, "User-Agent": true, "X-Requested-With": true,
}
