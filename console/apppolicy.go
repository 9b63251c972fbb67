package console

import (
	"cmp"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// appPage is the page around an MCP App. Its query names the origins that the app has
// declared: connect and resource, each any number of times. It also names the declared
// capabilities that the user has granted: allow, with eval, wasm or worker. A page that
// opens appPage with a different query gains nothing, because the console sends an app
// only to the frame that the console has made for it.
const appPage = "/mcp-app.html"

// maxAppOrigins bounds the origins per kind.
const maxAppOrigins = 16

// appPolicy returns the Content-Security-Policy for the page around an MCP App,
// following SEP-1865: an opaque origin, inline script and style, images as data, and
// network access only to the public origins declared by the app. Frames, forms and a
// base address are never allowed. Generated code and workers need the user's consent.
// host is the relay's own name, which is never an allowed origin.
func appPolicy(query url.Values, host string) string {
	connect, resource := publicOrigins(query["connect"], host), publicOrigins(query["resource"], host)
	connect = cmp.Or(connect, " 'none'")
	own, workers := "", ""
	if slices.Contains(query["allow"], "eval") {
		own += " 'unsafe-eval'"
	}
	if slices.Contains(query["allow"], "wasm") {
		own += " 'wasm-unsafe-eval'"
	}
	if slices.Contains(query["allow"], "worker") {
		workers = "; worker-src blob:"
	}
	return "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'" + own + resource + workers +
		"; style-src 'unsafe-inline'" + resource + "; img-src data: blob:" + resource + "; font-src data:" + resource +
		"; media-src data: blob:" + resource + "; connect-src" + connect +
		"; frame-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
}

// originForm matches https: or wss:, and a name with at least two labels. The last label
// must not be a number. This excludes IP addresses and names of local machines. After a
// wildcard, the name needs two labels.
var originForm = regexp.MustCompile(`^(https|wss)://((\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]([a-z0-9-]*[a-z0-9])?)(:[0-9]{1,5})?$`)

// privateZones are domains of private networks. Each network has its own machines there.
var privateZones = []string{"localhost", "local", "internal", "lan", "home", "corp", "intranet", "private", "home.arpa"}

// publicOrigins returns the permitted ones of the declared origins, each after a space.
func publicOrigins(declared []string, host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	var allowed []string
	for _, origin := range declared {
		form := originForm.FindStringSubmatch(origin)
		if form == nil || len(origin) > 253 || len(allowed) == maxAppOrigins || slices.Contains(allowed, origin) {
			continue
		}
		name := strings.TrimPrefix(form[2], "*.")
		ours := within(host, name) || within(name, host)
		if !ours && !slices.ContainsFunc(privateZones, func(zone string) bool { return within(name, zone) }) {
			allowed = append(allowed, origin)
		}
	}
	if len(allowed) == 0 {
		return ""
	}
	return " " + strings.Join(allowed, " ")
}

// within reports whether a name equals the zone or lies below it.
func within(name, zone string) bool {
	return zone != "" && (name == zone || strings.HasSuffix(name, "."+zone))
}
