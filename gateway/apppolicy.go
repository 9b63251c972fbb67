package gateway

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// appPage is the page around an MCP App. The origins that the app has declared
// are in its query: connect and resource, any number of each. So is what else it has
// declared and the user has agreed to: allow, with eval, wasm or worker. Who leads a frame
// there by another address has nothing of it: the console gives an app to its own alone.
const appPage = "/mcp-app.html"

// maxAppOrigins bounds the origins of each kind.
const maxAppOrigins = 16

// appPolicy is the policy of the page around an MCP App, as SEP-1865 has it: an
// origin of its own, inline script and style, pictures as data, and no network
// but for the public origins that the app has declared. It gets no frames, no
// forms and no base address, whatever it has declared; code that it makes itself, and
// workers of such, if the user agreed. Host is the relay's own name, which is none of
// the origins.
func appPolicy(query url.Values, host string) string {
	connect, resource := publicOrigins(query["connect"], host), publicOrigins(query["resource"], host)
	if connect == "" {
		connect = " 'none'"
	}
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

// originForm is https: or wss: and a name of at least two labels, the last of
// which is no number: no addresses, and no machines next door. A wildcard
// stands before two labels.
var originForm = regexp.MustCompile(`^(https|wss)://((\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]([a-z0-9-]*[a-z0-9])?)(:[0-9]{1,5})?$`)

// privateZones are names that mean something else on each network.
var privateZones = []string{"localhost", "local", "internal", "lan", "home", "corp", "intranet", "private", "home.arpa"}

// publicOrigins returns those that the policy may name, each after a space.
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

// within reports whether a name is the zone's or below it.
func within(name, zone string) bool {
	return zone != "" && (name == zone || strings.HasSuffix(name, "."+zone))
}
